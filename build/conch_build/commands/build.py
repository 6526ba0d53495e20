"""`conch build PLAN`: quantize, compile and pack what a plan describes, reusing what has not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, with_console

if TYPE_CHECKING:
    from conch_build.quality.gate import Evaluator


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("--dry-run", is_flag=True, help="Print what would be done, for GPUs as a shell script, and do nothing.")
@click.option("--force", is_flag=True, help="Build every stage again, also what has not changed.")
@click.option("--verbose", is_flag=True, help="Show what the libraries print instead of logging it.")
@with_console
def build(console: Console, plan: Path, dry_run: bool, force: bool, verbose: bool) -> None:
    """Build PLAN (conch.yaml) into a model repository that `conch serve` runs.

    A stage whose inputs have not changed is reused. Limits in the plan's `quality` must hold, or the build fails with
    exit code 3. Prints the path of the repository.
    """
    from conch_build.plan import load_plan

    loaded = load_plan(plan)
    if dry_run:
        from conch_build.dry_run import dry_run as describe

        would = describe(loaded, say=console.note)
        console.result({"plan": str(plan), **would.as_dict()}, would.text())
        return
    from conch_build.pipeline import build as run

    evaluator: Callable[[], Evaluator] | None = click.get_current_context().obj
    judge = evaluator() if evaluator else None
    result = run(loaded, force=force, verbose=verbose, evaluator=judge, say=console.note)
    console.result({"plan": str(plan), **result.as_dict()}, str(result.repository.path))
