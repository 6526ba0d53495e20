"""`conch build PLAN`: quantize, compile and pack what a plan describes, reusing what has not changed."""

from __future__ import annotations

from pathlib import Path

import click

from conch_build.console import Console, with_console


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("--force", is_flag=True, help="Build every stage again, also what has not changed.")
@click.option("--verbose", is_flag=True, help="Show what the libraries print instead of logging it.")
@with_console
def build(console: Console, plan: Path, force: bool, verbose: bool) -> None:
    """Build PLAN (conch.yaml) into a model repository that `conch serve` runs.

    A stage whose inputs have not changed is reused. Prints the path of the repository.
    """
    from conch_build.pipeline import build as run
    from conch_build.plan import load_plan

    result = run(load_plan(plan), force=force, verbose=verbose, say=console.note)
    console.result({"plan": str(plan), **result.as_dict()}, str(result.repository.path))
