"""What a repository is written for: the plan, the engine's folder as the server sees it, and what the model is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from conch_build.compile.precision import gpu_dtype
from conch_build.launch.arrangement import DRAFT, TARGET, Arrangement, arrangement_of
from conch_build.manifest import DRAFT_DIR
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan


@dataclass(frozen=True)
class Deployment:
    plan: Plan
    engine: Path
    """Absolute."""
    info: ModelInfo
    """Of the model that this engine serves."""
    draft_info: ModelInfo | None = None
    """None: there is no draft model, or one like its target."""
    model: str = TARGET
    """Name of the model that serves the engine: TARGET or DRAFT."""
    target_info: ModelInfo | None = None
    """Of a draft."""

    @cached_property
    def arrangement(self) -> Arrangement:
        """The processes that serve it. Raises PlanError for what no arrangement can do."""
        return arrangement_of(self.plan)

    @property
    def drafts(self) -> bool:
        """Whether a draft model of its own is served beside the target."""
        return self.plan.engine.backend == "tensorrt" and self.plan.engine.speculation.method == "draft"

    @property
    def adapters(self) -> Mapping[str, str]:
        """Name -> PEFT directory, of those that this engine takes."""
        return {} if self.model == DRAFT else self.plan.engine.lora.adapters

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        """Of every model that has an engine on the same GPUs: a target and, where there is one, its draft."""
        target = self.target_info or self.info
        return (target, self.draft_info or target) if self.drafts else (target,)

    def of_draft(self) -> Deployment:
        return replace(
            self,
            engine=self.engine / DRAFT_DIR,
            info=self.draft_info or self.info,
            model=DRAFT,
            target_info=self.info,
        )

    def half_type(self) -> str:
        """Triton's name of the 16-bit type that the engine computes in; FP16 where it computes in another."""
        on_gpu = self.plan.engine.backend != "openvino"
        return "TYPE_BF16" if on_gpu and gpu_dtype(self.plan, self.info) == "bfloat16" else "TYPE_FP16"

    def gpu_groups(self) -> str | None:
        """GPUs of each instance, `0,1;2,3`; None where the ranks that were started have one each."""
        arrangement = self.arrangement
        if arrangement.mode != "orchestrator" and arrangement.instances == 1:
            return None
        size = arrangement.world_size
        groups = (range(first, first + size) for first in range(0, arrangement.gpus, size))
        return ";".join(",".join(map(str, group)) for group in groups)
