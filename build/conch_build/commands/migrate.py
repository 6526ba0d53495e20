"""`conch migrate PLAN`: the same plan for TensorRT-LLM's LLM API, and what that changes."""

from __future__ import annotations

from pathlib import Path

import click

from conch_build.console import Console, with_console


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the new plan; without it, stdout.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@with_console
def migrate(console: Console, plan: Path, output: Path | None, force: bool) -> None:
    """Turn PLAN, whose backend is tensorrt, into a plan for the LLM API (backend pytorch).

    Says line by line what changes, what is dropped and what has no counterpart. Comments are kept.
    """
    from conch_build.errors import InputError
    from conch_build.migrate import migrate as run
    from conch_build.migrate import report
    from conch_build.plan import load_plan

    if output is not None and output.exists() and not force:
        raise InputError("exists already", where=str(output), fix="Use --force to overwrite it, or -o for another.")
    if output is not None and output.absolute().parent != plan.absolute().parent:
        raise InputError(
            "is in another folder, from which the paths in the plan would lead elsewhere",
            where=str(output),
            fix=f"Write it beside {plan}.",
        )
    load_plan(plan)  # says what is wrong with the file itself
    migration = run(plan.read_text(encoding="utf-8"), str(plan))
    if not migration.comments_kept:
        console.note("the comments are lost: the plan is written in a way that could only be written anew")
    changes = [change.as_dict() for change in migration.changes]
    if output is None:
        console.note(report(migration.changes))
        console.result({"plan": str(plan), "changes": changes, "text": migration.text}, migration.text.rstrip())
        return
    output.write_text(migration.text, encoding="utf-8")
    done = f"{report(migration.changes)}\nwrote {output}; next: conch check {output}"
    console.result({"plan": str(plan), "output": str(output), "changes": changes}, done)
