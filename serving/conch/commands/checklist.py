"""`conch checklist`: the way of a plan into service, point by point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, with_console
from conch_build.errors import CheckError, InputError

if TYPE_CHECKING:
    from conch.checklist import Point

FILE = click.Path(dir_okay=False, path_type=Path)
_PHASES = ("pre-deployment", "deployment", "operation")
_MARKS = {"done": ("[x]", "green"), "failed": ("[!]", "red"), "open": ("[ ]", "yellow"), "person": ("[?]", "cyan")}


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("--phase", "phases", multiple=True, type=click.Choice(_PHASES), help="Of these alone; default: all.")
@click.option("--url", help="The running gateway; it is asked for one short answer.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds a key for it.")
@click.option("--bench", type=FILE, help="What `conch bench --save` wrote: is the SLO kept?")
@click.option("--alerts", type=FILE, help="Your Prometheus rules.  [default: those that Conch has]")
@click.option("--dashboard", type=FILE, help="Your Grafana dashboard.  [default: the one that Conch has]")
@click.option("--strict", is_flag=True, help="Exit code 2 unless all is ticked but what a person does.")
@with_console
def checklist(
    console: Console,
    plan: Path,
    phases: tuple[str, ...],
    url: str | None,
    api_key_env: str | None,
    bench: Path | None,
    alerts: Path | None,
    dashboard: Path | None,
    strict: bool,
) -> None:
    """What PLAN needs before it is deployed, while it is and while it runs.

    \b
    [x] seen to be so      [!] seen not to be so, and what to do
    [ ] not looked at      [?] no program can see it: for a person
    """
    from conch.checklist.before import before
    from conch.checklist.deployment import deployment
    from conch.checklist.operation import Told, operation
    from conch.checklist.watching import watching
    from conch.gateway.settings import gateway_home
    from conch_build.plan import load_plan
    from conch_build.store import Store

    key = None
    if api_key_env is not None and not (key := os.environ.get(api_key_env)):
        raise InputError(f"the environment holds no {api_key_env}", where="--api-key-env")
    loaded = load_plan(plan)
    told = Told()

    def operating() -> Iterator[Point]:
        yield from operation(loaded, url, key, told)
        yield from watching(loaded.slo, alerts, dashboard, told.names)

    walks = {
        "pre-deployment": lambda: before(loaded, plan, Store(say=console.note), bench, console.note),
        "deployment": lambda: deployment(loaded, gateway_home(), running=url is not None),
        "operation": operating,
    }
    found = {phase: list(walks[phase]()) for phase in _PHASES if not phases or phase in phases}
    points = [point for own in found.values() for point in own]
    counts = {state: sum(point.state == state for point in points) for state in _MARKS}
    ok = not (counts["failed"] or counts["open"])
    rows = [{"phase": phase, **point.as_dict()} for phase, own in found.items() for point in own]
    console.result({"plan": str(plan), "ok": ok, "counts": counts, "points": rows}, _text(found, counts))
    if strict and not ok:
        click.get_current_context().exit(CheckError.exit_code)


def _text(found: dict[str, list[Point]], counts: dict[str, int]) -> str:
    width = max(len(point.id) for own in found.values() for point in own)
    lines = []
    for phase, own in found.items():
        lines.append(click.style(phase, bold=True))
        for point in own:
            mark, colour = _MARKS[point.state]
            lines.append(f"  {click.style(mark, fg=colour)} {point.id:<{width}}  {point.what}")
            if point.fix:
                lines.append(f"      {'':<{width}}  {point.fix}")
        lines.append("")
    done, failed, unseen, persons = (counts[state] for state in ("done", "failed", "open", "person"))
    return "\n".join([*lines, f"{done} done, {failed} failed, {unseen} not looked at, {persons} for a person"])
