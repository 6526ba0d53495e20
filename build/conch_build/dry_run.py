"""What `conch build` would do for a plan: its commands and files as a script, what would be reused, what follows.

Nothing is run, written or downloaded beyond what a check needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.checkpoint import Checkpoint
from conch_build.files import home
from conch_build.manifest import DRAFT_DIR, ENGINE_FILE
from conch_build.model_info import ModelInfo
from conch_build.pipeline import checked, draft_of
from conch_build.plan import Plan
from conch_build.recipe import Command, Recipe, Step, TextFile
from conch_build.stages import Say, Stage, slug
from conch_build.standing import standing_of
from conch_build.store import Store


@dataclass(frozen=True)
class DryRun:
    """`recipe`: the steps of a GPU build, none of a CPU's. `notes`: what a person should know besides."""

    backend: str
    recipe: Recipe
    notes: tuple[str, ...]

    def text(self) -> str:
        """A shell script with the notes as comments; the notes alone where there are no commands."""
        if not self.recipe.steps:
            return "\n".join(self.notes)
        comments = ["# " + line if line else "#" for line in "\n\n".join(self.notes).splitlines()]
        return "\n".join([self.recipe.script(), *([""] if comments else []), *comments])

    def as_dict(self) -> dict[str, Any]:
        """The same as `--json` prints it."""
        return {
            "backend": self.backend,
            "steps": [_step(step) for step in self.recipe.steps],
            "notes": list(self.notes),
        }


def dry_run(
    plan: Plan,
    store: Store | None = None,
    *,
    cache_dir: Path | None = None,
    out: Path | None = None,
    say: Say = lambda text: None,
) -> DryRun:
    """What building `plan` takes. `out`: where the script puts a GPU engine; None: below Conch's home.

    Raises CheckError, as a build does, when the plan cannot work.
    """
    checkpoint = checked(plan, cache_dir, say, needs_weights=False)
    draft = draft_of(plan, cache_dir, say, needs_weights=False)
    if plan.engine.backend == "openvino":
        return DryRun("openvino", Recipe(()), tuple(_cpu_lines(plan, store or Store(), checkpoint, draft)))
    return _for_gpus(plan, checkpoint, draft, out or home() / "builds" / slug(plan.name))


def _for_gpus(plan: Plan, checkpoint: Checkpoint, draft: tuple[Plan, Checkpoint] | None, out: Path) -> DryRun:
    from conch_build.compile.gpu_stages import expected, whole_recipe

    folder = Command("a folder for all of it", ("mkdir", "-p", str(out)))
    records = [TextFile("what the engine is", str(out / ENGINE_FILE), expected(plan, checkpoint).to_json())]
    if draft is not None and plan.engine.backend == "tensorrt":
        path = str(out / DRAFT_DIR / ENGINE_FILE)
        records.append(TextFile("what the draft's engine is", path, expected(*draft).to_json()))
    steps = Recipe((folder,)) + whole_recipe(plan, checkpoint, draft, out) + Recipe(tuple(records))
    if plan.serving.disaggregated is not None:
        from conch_build.compile.pytorch import CHECKPOINT_DIR
        from conch_build.disaggregated import recipe as cluster

        draft_path = draft[1].path if draft else None
        return DryRun(
            plan.engine.backend,
            steps + cluster(plan, checkpoint.info, out / CHECKPOINT_DIR, out, draft=draft_path),
            (),
        )
    draft_info = draft[1].info if draft else None
    return DryRun(plan.engine.backend, steps, tuple(_served(plan, out, checkpoint.info, draft_info)))


def _served(plan: Plan, out: Path, info: ModelInfo, draft: ModelInfo | None) -> Iterator[str]:
    """The repository that is packed of the engine, and what starts its server."""
    from conch_build.launch import arrangement_of, flags_of, start_command
    from conch_build.pack import repository_summary
    from conch_build.profiles import container_of

    yield f"Triton repository, which `conch build` packs of it:\n\n{repository_summary(plan, out, info, draft)}"
    if plan.quality.limits:
        yield f"quality gate: `conch build` serves the engine and its baseline on its GPU and holds {_limits(plan)}"
    arrangement = arrangement_of(plan)
    image = container_of(plan)
    if arrangement.nodes > 1:
        yield f"served in {image} on {arrangement.nodes} nodes by the files of `conch deploy k8s` or `slurm`"
        return
    flags = flags_of(plan, str(out / "repository"), "KEY")
    yield f"served in {image} by `conch serve`, which starts:\n\n{start_command(flags, arrangement).script()}"


def _cpu_lines(
    plan: Plan, store: Store, checkpoint: Checkpoint, draft: tuple[Plan, Checkpoint] | None
) -> Iterator[str]:
    """A line a stage: reused, or built and by what."""
    standing = standing_of(plan, store, checkpoint, draft)
    yield _line(standing.quantized, store, _quantizing(plan))
    if draft and standing.draft:
        yield _line(standing.draft, store, f"the draft model: {_quantizing(draft[0])}")
    yield _line(standing.engine, store, "compiled by OpenVINO")
    if standing.quality:
        yield _line(standing.quality, store, f"measured beside the unquantized model and held to {_limits(plan)}")
    yield _line(standing.repository, store, "the engine packed for Triton")


def _line(stage: Stage, store: Store, how: str) -> str:
    state = "reused" if stage.found(store) else f"would be built: {how}"
    return f"{stage.kind:<10}  {stage.path(store).name}: {state}"


def _limits(plan: Plan) -> str:
    return ", ".join(f"{name} {bound:g}" for name, bound in plan.quality.limits.items())


def _quantizing(plan: Plan) -> str:
    form, calibration = plan.quantization.format, plan.quantization.calibration
    if form == "none":
        return "the checkpoint as it is"
    if form == "int8":
        return "int8 weights by ModelOpt"
    return f"{form} by ModelOpt, calibrated on {calibration.samples} texts ({calibration.data})"


def _step(step: Step) -> dict[str, Any]:
    if isinstance(step, Command):
        return {"title": step.title, "argv": list(step.argv), "env": dict(step.env), "image": step.image}
    return {"title": step.title, "path": step.path, "text": step.text}
