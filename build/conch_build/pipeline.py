"""The whole build: checkpoint -> quantized -> engine -> Triton repository, each stage through the store.

A stage is built again only when something that decides its result has changed: what came before it, its part
of the plan, its code, or the libraries it calls. Knows the order of the stages; how a backend makes its two is for
`compile/openvino/stages.py` and `compile/gpu_stages.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build import checkpoint as checkpoints
from conch_build import pack, preflight
from conch_build.adapter_registry import AdapterRegistry, register
from conch_build.checkpoint import Checkpoint
from conch_build.files import home
from conch_build.model_info import ModelInfo
from conch_build.plan import Model, Plan, plan_of_draft
from conch_build.quality import work_of
from conch_build.quality.gate import Evaluator, hold, measured, quality_stage
from conch_build.recipe import TextFile
from conch_build.stages import HERE, Say, Stage, line, sources, versions
from conch_build.store import Artifact, Store


@dataclass(frozen=True)
class BuildResult:
    """What a build gives: where each stage's result is, and whether it was there before."""

    checkpoint: Checkpoint
    quantized: Artifact
    engine: Artifact
    repository: Artifact
    seconds: float
    quality: Artifact | None = None
    """What the engine was measured to be, where the plan has limits for it."""

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.quantized, self.engine, *([self.quality] if self.quality else []), self.repository

    def as_dict(self) -> dict[str, Any]:
        """The build as `--json` prints it."""
        return {
            "checkpoint": {"source": self.checkpoint.source, "path": str(self.checkpoint.path)},
            "artifacts": {
                artifact.kind: {**artifact.as_dict(), "reused": artifact.reused} for artifact in self.artifacts
            },
            "seconds": round(self.seconds, 3),
        }


def build(
    plan: Plan,
    store: Store | None = None,
    *,
    cache_dir: Path | None = None,
    force: bool = False,
    verbose: bool = False,
    evaluator: Evaluator | None = None,
    say: Say = lambda text: None,
) -> BuildResult:
    """Build what `plan` describes, starting at the first stage whose result is missing.

    `force` builds every stage again; `verbose` shows what the libraries print, which otherwise goes to a log
    under Conch's home; `evaluator` measures the engine where the plan has limits of quality. Raises CheckError before
    any work when the plan cannot work, QualityError when a limit is broken, else what a stage raises.
    """
    started = time.monotonic()
    store = store or Store(say=say)
    checkpoint = checked(plan, cache_dir, say)
    draft = draft_of(plan, cache_dir, say)
    if plan.cluster is None:
        pack.check_plan(plan, checkpoint.info, draft[1].info if draft else None)
    if plan.quality.limits and evaluator is not None:
        evaluator.check(plan)
    quantized, engine = _engine(plan, store, checkpoint, draft, force, verbose, say)
    say(line(engine))
    quality = None
    if plan.quality.limits:
        quality = judged(plan, store, checkpoint, engine, evaluator, cache_dir, force=force, verbose=verbose, say=say)
        hold(plan, quality)
    registry = registered(plan, checkpoint.info)

    def make(out: Path) -> None:
        if plan.cluster is not None:
            _write_cluster(plan, checkpoint, draft, engine.path, out)
        else:
            pack.pack(engine.path, out, plan, checkpoint.info, registry, draft[1].info if draft else None)

    stage = repository_stage(plan, engine.key, engine.path, registry, quality.key if quality else None)
    repository = stage.built(store, make, force=force)
    say(line(repository))
    return BuildResult(checkpoint, quantized, engine, repository, time.monotonic() - started, quality)


def build_engine(
    plan: Plan, store: Store, *, verbose: bool = False, say: Say = lambda text: None
) -> tuple[Checkpoint, Artifact]:
    """The checkpoint and the engine of a plan alone: nothing is judged, nothing packed. Raises what `build` does."""
    checkpoint = checked(plan, None, say)
    _, engine = _engine(plan, store, checkpoint, draft_of(plan, None, say), False, verbose, say)
    say(line(engine))
    return checkpoint, engine


def checked(plan: Plan, cache_dir: Path | None, say: Say, *, needs_weights: bool = True) -> Checkpoint:
    """The checkpoint of a plan that can work; `say` hears its warnings. Raises CheckError for one that cannot."""
    violations = preflight.check(plan, cache_dir, say=say)
    preflight.raise_for(violations)
    for violation in violations:
        say(str(violation))
    checkpoint = _resolved(plan, cache_dir, say, needs_weights)
    parameters = f"{checkpoint.info.parameters / 1e6:,.0f}M parameters"
    say(f"checkpoint  {plan.model.checkpoint}: {checkpoint.info.architecture}, {parameters}")
    return checkpoint


def draft_of(
    plan: Plan, cache_dir: Path | None, say: Say, *, needs_weights: bool = True
) -> tuple[Plan, Checkpoint] | None:
    """The draft model of a plan, quantized as its target is unless it comes quantized, as a plan of its own."""
    own = plan_of_draft(plan)
    if own is None:
        return None
    checkpoint = _resolved(own, cache_dir, say, needs_weights)
    if checkpoint.info.quantization is not None:
        own = own.model_copy(update={"quantization": own.quantization.model_copy(update={"format": "none"})})
    return own, checkpoint


def registered(plan: Plan, info: ModelInfo) -> AdapterRegistry | None:
    """The adapters that Conch's own models load while they run; TensorRT-LLM's backend has its own ways."""
    return register(plan.engine.lora, info) if plan.engine.backend != "tensorrt" else None


def baseline_of(plan: Plan, checkpoint: Checkpoint, cache_dir: Path | None, say: Say) -> Checkpoint:
    """The checkpoint that an engine is compared with: the plan's own, unless it names another."""
    if plan.quality.baseline is None:
        return checkpoint
    model = Model(checkpoint=plan.quality.baseline)
    return checkpoints.resolve(model, cache_dir, backend=plan.engine.backend, say=say)


def build_baseline(plan: Plan, store: Store, checkpoint: Checkpoint, verbose: bool, say: Say) -> Artifact:
    """The engine of a `baseline_plan`."""
    _, engine = _engine(plan, store, checkpoint, None, False, verbose, say)
    say(line(engine))
    return engine


def repository_stage(
    plan: Plan, engine_key: str, engine_path: Path, registry: AdapterRegistry | None, quality_key: str | None = None
) -> Stage:
    """What Triton loads, or the files of the workers that serve without it; it names the figures that let it pass."""
    gate = {"quality": {"key": quality_key, "limits": plan.quality.limits}} if quality_key else {}
    cluster = plan.cluster
    return Stage(
        "repository",
        plan.name,
        {
            "engine": {"key": engine_key, "path": str(engine_path)},
            **gate,
            "plan": pack.deciding_settings(plan),
            "disaggregated": cluster.model_dump(mode="json") if cluster else None,
            "adapters": registry.model_dump(mode="json") if registry else None,
            "code": sources(HERE / "disaggregated") if cluster else sources(HERE / "pack", pack.templates_dir()),
        },
        versions("conch"),
    )


def judged(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    engine: Artifact,
    evaluator: Evaluator | None,
    cache_dir: Path | None = None,
    *,
    force: bool = False,
    verbose: bool = False,
    say: Say,
) -> Artifact:
    """The figures of the engine beside its baseline's, which is built if need be; whether they do is not asked here.

    Raises SetupError when they are not in the store and there is no `evaluator`.
    """
    work = work_of(plan.quality)
    baseline = baseline_of(plan, checkpoint, cache_dir, say)
    stage = quality_stage(plan, engine.key, baseline, work)

    def build_it(own: Plan) -> Artifact:
        return build_baseline(own, store, baseline, verbose, say)

    artifact = measured(plan, store, stage, engine, build_it, evaluator, work, force=force, say=say)
    say(line(artifact))
    return artifact


def _write_cluster(
    plan: Plan, checkpoint: Checkpoint, draft: tuple[Plan, Checkpoint] | None, engine: Path, out: Path
) -> None:
    from conch_build.compile.pytorch import CHECKPOINT_DIR
    from conch_build.disaggregated import recipe

    steps = recipe(plan, checkpoint.info, engine / CHECKPOINT_DIR, out, draft=draft[1].path if draft else None).steps
    for file in (step for step in steps if isinstance(step, TextFile)):
        Path(file.path).write_text(file.text, encoding="utf-8")


def _resolved(plan: Plan, cache_dir: Path | None, say: Say, needs_weights: bool) -> Checkpoint:
    return checkpoints.resolve(plan.model, cache_dir, backend=plan.engine.backend, needs_weights=needs_weights, say=say)


def _engine(
    plan: Plan,
    store: Store,
    checkpoint: Checkpoint,
    draft: tuple[Plan, Checkpoint] | None,
    force: bool,
    verbose: bool,
    say: Say,
) -> tuple[Artifact, Artifact]:
    """What the backend makes of the checkpoint before the engine, and the engine."""
    log = home() / "logs" / f"{plan.name}-build.log"
    if plan.engine.backend == "openvino":
        from conch_build.compile.openvino import stages as cpu

        return cpu.build_engine(plan, store, checkpoint, draft, log=None if verbose else log, force=force, say=say)
    from conch_build.compile import gpu_stages

    return gpu_stages.build_engine(plan, store, checkpoint, draft, log=log, force=force, say=say)
