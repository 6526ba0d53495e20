"""`conch schema`: the plan's JSON Schema, for editors and other tools."""

from __future__ import annotations

import json

import click

from conch_build.console import Console, with_console
from conch_build.plan import plan_schema


@click.command()
@with_console
def schema(console: Console) -> None:
    """Print the plan's JSON Schema."""
    console.result(plan_schema(), json.dumps(plan_schema(), indent=2))
