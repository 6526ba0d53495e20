"""What only shows when the plan's commands and files are written: each is written, and thrown away.

So a plan that passes is one that renders. Where a rule has already spoken of the same key, its words are better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conch_build.checkpoint import Checkpoint
from conch_build.errors import BuildError, CheckpointError, PlanError
from conch_build.plan import Plan, plan_of_draft
from conch_build.preflight.registry import ENGINE, GPU, LLM_API, Violation, declare, from_error

_OUT = Path("out")

declare(
    "rendering.engine",
    "The commands that make an engine cannot be written for this plan: a converter, a flag or a combination that "
    "TensorRT-LLM does not have.",
    decided="plan",
    on=ENGINE,
)
declare(
    "rendering.llm-api",
    "The arguments of the LLM API cannot be written for this plan: one contradicts another, or the release lacks it.",
    decided="plan",
    on=LLM_API,
)
declare(
    "rendering.repository",
    "The Triton repository cannot be written for this plan: a parameter has no value that the models would take.",
    decided="plan",
    on=GPU,
)
declare(
    "disaggregated.cluster",
    "Workers that read prompts, workers that write answers and the proxy before them must agree: where each runs and "
    "on which GPUs, block sizes, how caches travel, a buffer for the longest prompt, and with TensorRT-LLM 1.2 no "
    "overlap scheduler where prompts are read and no pipeline stages there beside tensor ranks behind. Otherwise a "
    "worker refuses to start, or requests hang.",
    decided="plan",
    on=LLM_API,
    references=("NVIDIA/TensorRT-LLM#10755", "NVIDIA/TensorRT-LLM#12416", "NVIDIA/TensorRT-LLM#17535"),
)


def refusals(facts: Mapping[str, Any], violations: Sequence[Violation]) -> Iterator[Violation]:
    """What stands in the way of writing everything, beside the `violations` that are known."""
    plan: Plan = facts["plan"]
    checkpoint: Checkpoint | None = facts.get("checkpoint")
    if plan.engine.backend == "openvino" or checkpoint is None or not facts.keys() >= {"profile", "gpu"}:
        return
    if plan_of_draft(plan) is not None and "draft" not in facts:
        return
    told = {violation.where for violation in violations if violation.severity == "error"}
    if any(violation.rule == "target.backend" for violation in violations):  # nothing of it is in this release
        return
    for name, write in _written(plan, checkpoint, facts.get("draft")):
        try:
            write()
        except (PlanError, BuildError, CheckpointError) as error:
            violation = from_error(error, name)
            if not any(_related(violation.where, key) for key in told):
                told.add(violation.where)
                yield violation


def _written(plan: Plan, checkpoint: Checkpoint, draft: Checkpoint | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Rule -> what writes a part of the build."""
    from conch_build import disaggregated, pack
    from conch_build.compile import pytorch, tensorrt
    from conch_build.compile.tensorrt import Source

    info, path = checkpoint.info, checkpoint.path
    own = plan_of_draft(plan)
    source = Source(own, draft.info, draft.path) if own and draft else None
    if plan.cluster is None:
        draft_info = draft.info if draft else None
        yield "rendering.repository", lambda: pack.repository_summary(plan, _OUT, info, draft_info)
    if plan.engine.backend == "tensorrt":
        yield "rendering.engine", lambda: tensorrt.recipe(plan, info, path, _OUT, draft=source)
        return
    if plan.serving.disaggregated is not None:
        draft_path = draft.path if draft else None
        yield "disaggregated.cluster", lambda: disaggregated.recipe(plan, info, path, _OUT, draft=draft_path)
    yield "rendering.llm-api", lambda: pytorch.recipe(plan, info, path, _OUT, draft=source)


def _related(where: str, key: str) -> bool:
    """Whether one key of the plan is the other, or lies in it."""
    return where == key or where.startswith(f"{key}.") or key.startswith(f"{where}.") or where == "plan"
