"""`conch usage`: tokens, busy time and cost out of a gateway's ledger."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conch.commands.keys import database_of, moment, plan_option
from conch_build.console import Console, table, with_console

if TYPE_CHECKING:
    from conch.gateway.ledger.usage import Usage


@click.command()
@click.option(
    "--by",
    type=click.Choice(["key", "model", "adapter", "experiment", "variant", "day"]),
    default="key",
    show_default=True,
)
@click.option("--since", help="From when on: 7d, 12h, 2027-01-31, 2027-01-31T12:00 (UTC). Default: all there is.")
@click.option("--until", help="Up to when, as `--since`. Default: now.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write the rows there, with every column.")
@plan_option
@with_console
def usage(console: Console, by: str, since: str | None, until: str | None, csv_path: Path | None, plan: Path) -> None:
    """What was used, and what it cost on the plan's machines.

    An engine's busy time is shared by the requests that run at each instant, and paid at `cost.instance_hourly_usd` as
    it was then. Prompts bear the time until the first token; cached tokens of them cost nothing. Draft tokens are
    guesses: what they cost is in the tokens that came of them.
    """
    from conch.gateway.ledger import usage as ledger

    begin, end = (None if text is None else moment(text, ahead=False) for text in (since, until))
    with database_of(plan) as database:
        rows = database.run_now(lambda connection: ledger.usage(connection, by, begin, end))
    found = [
        {by: row.group, **{name: value for name, value in row.as_dict().items() if name != "group"}} for row in rows
    ]
    if csv_path is not None:
        with csv_path.open("w", newline="", encoding="utf-8") as file:
            names = [by, *(name for name in ledger.COLUMNS if name != "group")]
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(found)
        console.note(f"wrote {csv_path}: {len(found)} rows")
    console.result(found, _table(by, rows) if rows else "the ledger has nothing of that time")


def _table(by: str, rows: list[Usage]) -> str:
    headers = (by, "requests", "prompt", "cached", "generated", "drafted", "accepted", "busy s", "USD")
    rates = ("USD/1M prompt", "USD/1M cached", "USD/1M generated")
    lines = [
        (
            row.group or "-",
            row.requests,
            row.prompt_tokens,
            row.cached_tokens,
            row.completion_tokens,
            row.draft_tokens,
            row.accepted_tokens,
            f"{row.prefill_seconds + row.decode_seconds:.2f}",
            _usd(row.usd, 6),
            *(
                _usd(value, 4)
                for value in (row.cost and (row.cost.computed, row.cost.cached, row.cost.generated)) or [None] * 3
            ),
        )
        for row in rows
    ]
    return table((*headers, *rates), lines)


def _usd(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
