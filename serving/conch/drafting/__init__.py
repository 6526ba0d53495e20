"""A draft for a plan: its target's engine is built, answers for `conch_build.draft`, and is timed beside the draft.

Here the two packages meet: how a draft is pruned and trained is `conch_build`'s, which knows no engine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from conch_build import checkpoint as checkpoints
from conch_build.disk import flock
from conch_build.draft import REPORT_FILE, DraftReport, Recipe, check_target, make_draft
from conch_build.errors import InputError
from conch_build.files import home
from conch_build.pipeline import build
from conch_build.plan import Lora, Plan, Speculation
from conch_build.plan_quality import Quality

Say = Callable[[str], None]


def make(
    plan: Plan, recipe: Recipe, output: Path | None, *, verbose: bool = False, say: Say = lambda text: None
) -> tuple[Path, DraftReport]:
    """Make the draft of `plan`'s target in `output` (None: under Conch's home, by the plan's name).

    Returns the folder, which appears whole or not at all, and the report. Raises InputError when something else is
    at `output` or the target is quantized already, and what building the engine raises.
    """
    from conch.drafting.answers import answers_of
    from conch.drafting.steps import step_times

    folder = (output or home() / "drafts" / plan.name).absolute()
    if folder.exists() and not (folder / REPORT_FILE).is_file():
        raise InputError("is there and is no draft", where=str(folder), fix="Name another folder with --output.")
    check_target(checkpoints.resolve(plan.model, say=say))
    plain = plan.engine.model_copy(update={"speculation": Speculation(), "lora": Lora()})
    plan = plan.model_copy(update={"engine": plain, "quality": Quality()})
    built = build(plan, verbose=verbose, say=say)
    work = home() / "drafts" / f".{plan.name}-{built.engine.key[:12]}"
    work.mkdir(parents=True, exist_ok=True)
    with flock(work / "lock", fcntl.LOCK_EX), built.engine.hold() as engine_folder:
        scratch = work / "draft"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        report = make_draft(
            built.checkpoint,
            recipe,
            partial(answers_of, engine_folder),
            partial(step_times, engine_folder, plan),
            work,
            scratch,
            log=None if verbose else home() / "logs" / f"{plan.name}-draft.log",
            say=say,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.move(scratch, beside)  # the output may be on another disk, where moving is copying
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    return folder, report
