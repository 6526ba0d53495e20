"""`conch check PLAN`: everything that would fail, in one go, with exit code 2 if anything would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, with_console

if TYPE_CHECKING:
    from conch_build.preflight import Violation


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@with_console
def check(console: Console, plan: Path) -> None:
    """Check PLAN (conch.yaml) and its checkpoint: every violation with its rule, place and fix.

    Exit code 0: it can be built. 2: it cannot.
    """
    from conch_build.errors import CheckError
    from conch_build.plan import load_plan
    from conch_build.preflight import check as preflight

    violations = preflight(load_plan(plan), say=console.note)
    errors = sum(violation.severity == "error" for violation in violations)
    report = {"plan": str(plan), "ok": not errors, "violations": [v.as_dict() for v in violations]}
    lines = [_paragraph(violation) for violation in violations]
    lines.append(f"{plan}: {errors} error(s), {len(violations) - errors} warning(s)" if lines else f"{plan}: ok")
    console.result(report, "\n".join(lines))
    if errors:
        click.get_current_context().exit(CheckError.exit_code)


def _paragraph(violation: Violation) -> str:
    colour = "red" if violation.severity == "error" else "yellow"
    head = f"{click.style(violation.severity, fg=colour, bold=True)} {violation.rule}  {violation.where}"
    return "\n    ".join([head, f"{violation.message}.", violation.fix])
