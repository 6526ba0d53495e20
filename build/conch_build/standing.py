"""The stages of a build as a plan has them now: what each would be, and so whether it is in the store. Builds nothing.

Knows the order of the stages from `pipeline`, and what decides each from the backend's own module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conch_build.checkpoint import Checkpoint
from conch_build.pipeline import baseline_of, registered, repository_stage
from conch_build.plan import Plan
from conch_build.quality import work_of
from conch_build.quality.gate import quality_stage
from conch_build.stages import Stage
from conch_build.store import Store


@dataclass(frozen=True)
class Standing:
    """`draft`: the draft model's quantized checkpoint, where it is one; `quality`: None without limits."""

    quantized: Stage
    draft: Stage | None
    engine: Stage
    quality: Stage | None
    repository: Stage

    def __iter__(self) -> Iterator[Stage]:
        stages = (self.quantized, self.draft, self.engine, self.quality, self.repository)
        yield from (stage for stage in stages if stage is not None)


def standing_of(plan: Plan, store: Store, checkpoint: Checkpoint, draft: tuple[Plan, Checkpoint] | None) -> Standing:
    """`draft`: as `pipeline.draft_of` gives it."""
    if plan.engine.backend == "openvino":
        from conch_build.compile.openvino import stages as cpu

        quantized_stage, engine_stage = cpu.quantized_stage, cpu.engine_stage
    else:
        from conch_build.compile import gpu_stages as gpu

        quantized_stage, engine_stage = gpu.converted_stage, gpu.engine_stage  # type: ignore[assignment]  # names only

    quantized = quantized_stage(plan, checkpoint)
    drafts = None
    draft_key = None
    if draft is not None and plan.engine.backend == "pytorch":  # the LLM API takes a draft as it is
        draft_key = draft[1].sha256
    elif draft is not None:
        drafts = quantized_stage(*draft)
        draft_key = drafts.key
    engine = engine_stage(plan, quantized.key, draft_key)
    quality = None
    if plan.quality.limits:
        baseline = baseline_of(plan, checkpoint, None, lambda text: None)
        quality = quality_stage(plan, engine.key, baseline, work_of(plan.quality))
    registry = registered(plan, checkpoint.info)
    repository = repository_stage(plan, engine.key, engine.path(store), registry, quality.key if quality else None)
    return Standing(quantized, drafts, engine, quality, repository)
