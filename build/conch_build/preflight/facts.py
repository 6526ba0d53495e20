"""What is known of a plan before anything is built: its checkpoint, its draft model, its release, its GPU.

What cannot be known hides only the rules that need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.checkpoint import Checkpoint, examine
from conch_build.convert import Say
from conch_build.errors import CheckpointError, PlanError
from conch_build.gpu.cards import Gpu, gpu_of
from conch_build.gpu.memory import GpuMemory, gpu_memory
from conch_build.plan import Plan, plan_of_draft
from conch_build.preflight.registry import Violation, from_error
from conch_build.profiles import Profile, profile_for


@dataclass(frozen=True)
class Facts:
    plan: Plan
    checkpoint: Checkpoint | None = None
    draft: Checkpoint | None = None
    profile: Profile | None = None
    gpu: Gpu | None = None

    def memory(self, *, with_draft: bool = True) -> GpuMemory | None:
        """Of each GPU; None without a model or a GPU, or with types of numbers that no GPU has."""
        if self.checkpoint is None or self.gpu is None:
            return None
        draft = self.draft.info if self.draft and with_draft else None
        try:
            return gpu_memory(self.plan, self.checkpoint.info, self.gpu.memory_bytes, draft)
        except PlanError:
            return None

    def known(self) -> dict[str, Any]:
        """By the names that rules ask for. `memory`: as if the model were alone on its GPUs."""
        facts = {
            "plan": self.plan,
            "checkpoint": self.checkpoint,
            "info": self.checkpoint.info if self.checkpoint else None,
            "draft": self.draft,
            "profile": self.profile,
            "gpu": self.gpu,
            "memory": self.memory(with_draft=False),
            "memory_with_draft": self.memory() if self.draft else None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def gather(plan: Plan, cache_dir: Path | None, say: Say) -> tuple[Facts, list[Violation]]:
    """The facts of a plan, and why some of them cannot be known."""
    violations: list[Violation] = []
    backend = plan.engine.backend
    checkpoint, problems = examine(plan.model, cache_dir, backend=backend, needs_weights=False, say=say)
    violations += [_of_checkpoint(error) for error in problems]
    draft = None
    if checkpoint is not None and (own := plan_of_draft(plan)) is not None:
        draft, problems = examine(own.model, cache_dir, backend=backend, needs_weights=False, say=say)
        where = "engine.speculation.checkpoint"
        violations += [Violation(where, problem.message, rule=problem.rule, fix="") for problem in problems]
    profile = gpu = None
    if backend != "openvino":
        try:
            profile = profile_for(plan)
        except PlanError as error:
            violations.append(from_error(error, "target.release"))
        try:
            gpu = gpu_of(plan)
        except PlanError as error:
            violations.append(from_error(error, "target.gpu"))
    return Facts(plan, checkpoint, draft, profile, gpu), violations


def _of_checkpoint(error: CheckpointError) -> Violation:
    message = f"{error.where}: {error.what}" if error.where else error.what
    return Violation("model.checkpoint", message, error.fix or "", rule=error.rule)
