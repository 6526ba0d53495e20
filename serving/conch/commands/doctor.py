"""`conch doctor`: whether this machine can build and serve, and what it lacks."""

from __future__ import annotations

import sys

import click

from conch.doctor import Check, checks
from conch_build.console import Console, with_console
from conch_build.errors import SetupError


@click.command()
@with_console
def doctor(console: Console) -> None:
    """Check what building and serving need; exits with 4 if something is missing."""
    found = checks()
    lines = [_line(check) for check in found]
    console.result([check.as_dict() for check in found], "\n".join(lines))
    if not all(check.ok for check in found):
        sys.exit(SetupError.exit_code)


def _line(check: Check) -> str:
    mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
    text = f"{mark}  {check.name}: {check.detail}"
    return f"{text}. {check.fix}" if check.fix else text
