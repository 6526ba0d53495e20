"""`conch tune`: a plan's serving settings, searched by real runs for its SLO at the lowest cost."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, table, with_console
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch.bench.traffic.setup import Options
    from conch.tuning.climb import Climb, Row
    from conch.tuning.space import Values
    from conch.tuning.study import OnLevel, Tried
    from conch.tuning.verdict import Round, Verdict
    from conch_build.cost import Price

FILE = click.Path(dir_okay=False, path_type=Path)
AT_LEAST_1 = click.IntRange(min=1)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("-o", "--output", type=FILE, help="The tuned plan.  [default: PLAN with -tuned in its name]")
@click.option("--evidence", type=FILE, help="JSON: every trial, every round.  [default: beside the output]")
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(min=0), help="Of the search.")
@click.option("--trials", default=20, show_default=True, type=AT_LEAST_1, help="Settings measured at most.")
@click.option("--concurrency", default="1,4,8,16,32", show_default=True, help="Requests at once, from few to many.")
@click.option("--input-tokens", default="128", show_default=True, metavar="LENGTHS", help="As of `conch bench`.")
@click.option("--output-tokens", default="64", show_default=True, metavar="LENGTHS", help="Likewise.")
@click.option("--requests", type=AT_LEAST_1, help="Of a level.  [default: three times as many as at once]")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=2), help="Of own against best.")
@click.option("--seed", default=0, show_default=True, help="Of prompts, and of what is tried next.")
@click.option("--fresh", is_flag=True, help="Forget what an earlier run of the same question has found.")
@click.option("--force", is_flag=True, help="Overwrite the output.")
@with_console
def tune(
    console: Console,
    plan: Path,
    output: Path | None,
    evidence: Path | None,
    minutes: float,
    trials: int,
    rounds: int,
    fresh: bool,
    force: bool,
    **load: Any,
) -> None:
    """Serve PLAN with other settings, one after the other, and keep those that give the most tokens within its SLO.

    Each is built, served and loaded with more and more requests at once until the SLO breaks. The best and the plan's
    own are then measured in turns. An interrupted search goes on where it was.
    """
    from conch.bench.traffic.setup import Options, counts
    from conch.hosting import hosting_of
    from conch.tuning.space import changed, own_values, space_of, written
    from conch.tuning.study import Study, alone_in, best_of, folder_of
    from conch_build.cost import Price
    from conch_build.files import home
    from conch_build.plan import Slo, load_plan, parse_plan

    output = output or plan.with_name(f"{plan.stem}-tuned{plan.suffix}")
    evidence = evidence or output.with_suffix(".json")
    loaded, levels = load_plan(plan), sorted(set(counts(load["concurrency"])))
    _check_output(plan, output, force)
    if loaded.slo == Slo():
        fix = "Set one, as `slo: {ttft_p95: 500ms, itl_p95: 50ms}`."
        raise InputError("the plan has no SLO to search for", where=str(plan), fix=fix)
    hosting_of(loaded)
    space = space_of(loaded, os.cpu_count() or 1)
    settings = [vars(one) for one in space]
    question = {"conch": version("conch"), "plan": loaded.model_dump(mode="json"), "space": settings, "load": load}
    folder = folder_of(home(), loaded.name, question)
    options = Options(**{**load, "concurrency": None}, rounds=1)
    runs = _Runs(plan, folder, options)
    verdict = None
    with alone_in(folder):
        if fresh:
            (folder / "study.log").unlink(missing_ok=True)
        study = Study(folder / "study.log", space, loaded.slo, load["seed"])
        if known := len(study.tried()):
            console.note(f"going on after {known} trial(s) in {folder}")
        study.search(
            lambda values, on: runs.climb(changed(space, values), levels, on), trials, 60 * minutes, console.note
        )
        tried = study.tried()
        best = best_of(tried, loaded.slo)
        own = next(one for one in tried if one.values == own_values(space))
        changes = changed(space, best.values)
        if changes:
            verdict = _compared(console, runs, own, best, changes, rounds)
    price = None if loaded.cost.instance_hourly_usd is None else Price(loaded.cost.instance_hourly_usd)
    result: dict[str, Any] = {
        "plan": str(plan),
        "output": None,
        "evidence": str(evidence),
        "settings": changes,
        "own": own.row,
        "best": best.row,
        "comparison": verdict.as_dict(price) if verdict else None,
        "trials": [one.as_dict() for one in tried],
    }
    lines = [_table(tried, own, best), ""]
    if verdict is None:
        lines.append(f"the plan's own settings are the best of {len(tried)} that were tried")
    elif not verdict.proven:
        lines += [
            *_told(verdict, changes, price),
            "so the plan stays as it is; more --minutes or --requests may tell more",
        ]
    else:
        text, comments_kept = written(plan.read_text(encoding="utf-8"), changes)
        parse_plan(text, source=str(output))
        output.write_text(text, encoding="utf-8")
        result["output"] = str(output)
        lines += [*_told(verdict, changes, price), f"wrote {output}" + ("" if comments_kept else " (without comments)")]
    evidence.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.result(result, "\n".join([*lines, f"wrote {evidence}"]))


class _Runs:
    """Plans with other settings, served and loaded."""

    def __init__(self, plan: Path, folder: Path, options: Options) -> None:
        from conch_build.store import Store

        self.plan, self.folder, self.options, self.store = plan, folder, options, Store()
        self.text = plan.read_text(encoding="utf-8")

    def climb(
        self, changes: Values, levels: list[int], on_level: OnLevel = lambda number, row: True, *, keep: bool = False
    ) -> Climb:
        from conch.bench.traffic.runs import in_loop
        from conch.tuning.climb import climb
        from conch.tuning.served import serving
        from conch.tuning.space import written

        text = written(self.text, changes)[0]
        with serving(self.plan, text, self.store, self.folder, keep=keep) as served:
            return in_loop(climb(served, self.options, levels, on_level))


def _compared(console: Console, runs: _Runs, own: Tried, best: Tried, changes: Values, rounds: int) -> Verdict:
    from conch.tuning.verdict import in_turns

    def side(name: str, one: Tried, settings: Values) -> Round:
        def measure(number: int) -> Row:
            console.note(f"round {number + 1}/{rounds}  {name}")
            level = int((one.row or {})["concurrency"])
            row: Row = runs.climb(settings, [level], keep=True).rows[0]
            return row

        return measure

    return in_turns(side("own", own, {}), side("best", best, changes), rounds)


def _check_output(plan: Path, output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise InputError("exists already", where=str(output), fix="Use --force to overwrite it, or -o for another.")
    if output.absolute().parent != plan.absolute().parent:
        what = "is in another folder, from which the paths in the plan would lead elsewhere"
        raise InputError(what, where=str(output), fix=f"Write it beside {plan}.")


def _table(tried: list[Tried], own: Tried, best: Tried) -> str:
    rows = []
    for one in tried:
        row = one.row or {}
        mark = "best" if one is best else "own" if one is own else ""
        cells = [
            ("load", "{}"),
            ("tokens_per_second", "{:.0f}"),
            ("ttft_p95_ms", "{:.1f} ms"),
            ("tpot_p95_ms", "{:.1f} ms"),
        ]
        figures = [form.format(row[name]) if row.get(name) is not None else "-" for name, form in cells]
        other = [f"{n.removeprefix('engine.')} {v}" for n, v in one.values.items() if v != own.values[n]]
        rows.append((one.number + 1, one.outcome, *figures, mark, ", ".join(other)))
    return table(("trial", "", "load", "tok/s", "TTFT p95", "TPOT p95", "", "other than the plan"), rows)


def _told(verdict: Verdict, changes: Values, price: Price | None) -> list[str]:
    found = verdict.throughput
    low, high = found.ratio.low, found.ratio.high
    lines = [
        ", ".join(f"{name}: {value}" for name, value in changes.items()),
        f"within the SLO: {found.a:.0f} -> {found.b:.0f} tok/s, {found.ratio.ratio:.3f} times "
        f"(95% interval {low:.3f} to {high:.3f}, {found.ratio.pairs} rounds in turns): {found.verdict}",
    ]
    if price is not None:
        own, best = verdict.as_dict(price)["usd_per_million_generated"]
        lines.append(f"generated tokens: ${own:.3f} -> ${best:.3f} a million")
    if not verdict.kept:
        lines.append("in these rounds they did not keep the SLO")
    if not verdict.own_kept:
        lines.append("in these rounds the plan's own settings did not keep the SLO")
    return lines
