"""The quality gate of a build: a stage between engine and repository that measures the engine beside its baseline.

What was measured is an artifact like any other and does not depend on the limits: another limit is held against the
same figures at once, and a build that has failed fails again until its plan changes. Who runs the engines is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from conch_build.checkpoint import Checkpoint
from conch_build.errors import QualityError, SetupError
from conch_build.machine import has_bf16
from conch_build.plan import Lora, Model, Plan, Quantization, Speculation
from conch_build.plan_quality import Quality
from conch_build.quality.figures import Figures
from conch_build.quality.judge import Work
from conch_build.quality.tasks import dump_tasks
from conch_build.stages import HERE, Say, Stage, sources, versions
from conch_build.store import Artifact, Store


@dataclass(frozen=True)
class Side:
    """One of the two engines that are compared: the plan that it was built by, its folder, and the store it is in."""

    plan: Plan
    engine: Path
    store: Store


class Evaluator(Protocol):
    """Runs engines and asks them."""

    def check(self, plan: Plan) -> None:
        """Raise SetupError when this machine cannot run the engines of `plan`, before hours are spent on them."""

    def measure(self, baseline: Side, build: Side, work: Work, say: Say) -> Figures:
        """What `quality.judge` finds."""


def baseline_plan(plan: Plan) -> Plan:
    """The plan of what a build is compared with: nothing quantized, no speculation, no adapters, no gate."""
    model = plan.model if plan.quality.baseline is None else Model(checkpoint=plan.quality.baseline)
    engine = plan.engine.model_copy(update={"speculation": Speculation(), "lora": Lora()})
    update = {
        "model": model,
        "quantization": Quantization.model_validate({"kv_cache": _activations(plan)}),
        "engine": engine,
        "quality": Quality(),
    }
    return plan.model_copy(update=update)


def quality_stage(plan: Plan, engine_key: str, baseline: Checkpoint, work: Work) -> Stage:
    """The figures of an engine; how the baseline is compiled is decided by what decides the engine."""
    return Stage(
        "quality",
        plan.name,
        {
            "engine": engine_key,
            "baseline": baseline.sha256,
            "texts": list(work.texts),
            "max_length": work.max_length,
            "tasks": dump_tasks(work.tasks),
            "code": sources(HERE / "quality"),
            "evaluator": evaluator_code(),
        },
        versions("conch"),
    )


def evaluator_code() -> str:
    """Hash of the code that asks engines and that runs them here, which is the serving package's; nothing of it is
    imported. Empty where that is not installed, and nobody can measure."""
    found = find_spec("conch")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    return sources(*(folder / name for folder in folders for name in ("evaluation", "engine")))


def measured(
    plan: Plan,
    store: Store,
    stage: Stage,
    engine: Artifact,
    build_baseline: Callable[[Plan], Artifact],
    evaluator: Evaluator | None,
    work: Work,
    *,
    force: bool,
    say: Say,
) -> Artifact:
    """The figures of an engine: those in the store, or new ones, for which its baseline is built.

    Raises SetupError when they are not there and nobody can measure them.
    """

    def make(out: Path) -> None:
        if evaluator is None:
            fix = "Run `conch build` with this plan first: it measures the engine."
            raise SetupError("the engine has not been through its quality gate", where=plan.name, fix=fix)
        say("quality     the baseline: unquantized, compiled as the engine is")
        own = baseline_plan(plan)
        baseline = build_baseline(own)
        with baseline.hold() as theirs, engine.hold() as ours:
            evaluator.measure(Side(own, theirs, store), Side(plan, ours, store), work, say).save(out)

    return stage.built(store, make, force=force)


def hold(plan: Plan, artifact: Artifact) -> Figures:
    """The figures, when they hold the plan's limits. Raises QualityError naming each one that is broken."""
    figures = Figures.load(artifact.path)
    if broken := figures.broken(plan.quality.limits):
        raise QualityError(
            f"the build does not pass its quality gate: {'; '.join(broken)}",
            where=plan.name,
            fix=f"Choose a milder `quantization`, or other limits in `quality`. The figures: {artifact.path}",
        )
    return figures


def _activations(plan: Plan) -> str:
    """A KV cache that is not quantized either."""
    if plan.engine.backend != "openvino":
        return "auto"  # of an unquantized model: 16 bits
    precision = plan.engine.precision
    return precision if precision in ("bf16", "f32") else "bf16" if has_bf16() else "f32"
