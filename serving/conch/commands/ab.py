"""`conch ab`: the experiments of a gateway, shown and steered through its database, whether it runs or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, table, with_console
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch.gateway.ab.store import Kept
    from conch.gateway.database import Database
    from conch_build.plan import Plan
    from conch_build.plan_experiments import Experiment

_PLAN = click.option(
    "--plan", "path", type=click.Path(path_type=Path), default="conch.yaml", show_default=True, help="Its plan."
)


@click.group(name="ab")
def ab() -> None:
    """Show and steer the experiments of a gateway; a running one follows within a second."""


@ab.command()
@click.argument("name", required=False)
@_PLAN
@with_console
def show(console: Console, name: str | None, path: Path) -> None:
    """Shares, figures and verdict of every experiment, or of NAME."""
    from conch.gateway.ab import store

    with _opened(path) as (plan, database):
        names = [_experiment(plan, name)[0]] if name else list(plan.serving.gateway.experiments)
        found = {}
        for known in names:
            weights = database.run_now(partial(store.weights, name=known))
            kept = database.run_now(partial(store.kept, name=known))
            events = database.run_now(partial(store.events, name=known))
            found[known] = _report(plan.serving.gateway.experiments[known], weights, kept, events)
    if not found:
        console.note("the plan has no experiments: `serving.gateway.experiments` names them")
    console.result(found, "\n\n".join(_text(known, report) for known, report in found.items()) or None)


@ab.command(name="set")
@click.argument("name")
@click.argument("weights", nargs=-1, required=True, metavar="VARIANT=WEIGHT ...")
@_PLAN
@with_console
def set_weights(console: Console, name: str, weights: tuple[str, ...], path: Path) -> None:
    """Give variants of NAME other shares: `conch ab set chat old=50 new=50`."""
    with _opened(path) as (plan, database):
        name, experiment = _experiment(plan, name)
        _steer(console, database, name, dict(_weight(text, experiment) for text in weights), "set by hand")


@ab.command()
@click.argument("name")
@click.argument("variant")
@_PLAN
@with_console
def promote(console: Console, name: str, variant: str, path: Path) -> None:
    """Give VARIANT all requests of NAME."""
    with _opened(path) as (plan, database):
        name, experiment = _experiment(plan, name)
        _variant(variant, experiment)
        _steer(console, database, name, {other: float(other == variant) for other in experiment.variants}, "promoted")


@ab.command()
@click.argument("name")
@click.argument("variant")
@_PLAN
@with_console
def stop(console: Console, name: str, variant: str, path: Path) -> None:
    """Give VARIANT no more requests."""
    from conch.gateway.ab import store

    with _opened(path) as (plan, database):
        name, experiment = _experiment(plan, name)
        _variant(variant, experiment)
        database.run_now(partial(store.stop, name=name, variant=variant, reason="stopped by hand"))
        _tell(console, database, name)


def _steer(console: Console, database: Database, name: str, wanted: dict[str, float], reason: str) -> None:
    from conch.gateway.ab import store

    before = database.run_now(partial(store.weights, name=name))
    if not any({**before, **wanted}.values()):
        raise InputError("every weight would be 0", where=name, fix="Leave one variant above 0: somebody must answer.")
    database.run_now(partial(store.steer, name=name, wanted=wanted, reason=reason))
    _tell(console, database, name)


def _tell(console: Console, database: Database, name: str) -> None:
    from conch.gateway.ab import store

    now = database.run_now(partial(store.weights, name=name))
    console.result({"experiment": name, "weights": now}, ", ".join(f"{key}={value:g}" for key, value in now.items()))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Plan, Database]]:
    """The plan and its gateway's database, with the plan's experiments in it."""
    from conch.gateway.ab import store
    from conch.gateway.database import Database
    from conch_build.files import home
    from conch_build.plan import load_plan

    plan = load_plan(path)
    database = Database.at(plan.serving.gateway.database.url, home() / "gateway")
    try:
        for name, experiment in plan.serving.gateway.experiments.items():
            database.run_now(partial(store.enroll, name=name, experiment=experiment))
        yield plan, database
    finally:
        database.close_now()


def _experiment(plan: Plan, name: str) -> tuple[str, Experiment]:
    known = plan.serving.gateway.experiments
    if name not in known:
        fix = f"The plan has {', '.join(known) or 'none'}."
        raise InputError(f"there is no experiment {name!r}", where="serving.gateway.experiments", fix=fix)
    return name, known[name]


def _variant(name: str, experiment: Experiment) -> None:
    if name not in experiment.variants:
        raise InputError(f"there is no variant {name!r}", fix=f"There are {', '.join(experiment.variants)}.")


def _weight(text: str, experiment: Experiment) -> tuple[str, float]:
    name, _, number = text.partition("=")
    _variant(name, experiment)
    try:
        weight = float(number)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise InputError(f"{text!r} gives no weight of 0 or more", fix="Write it as VARIANT=WEIGHT, as new=10.")
    return name, weight


def _report(experiment: Experiment, weights: dict[str, float], kept: Kept, events: list[Any]) -> dict[str, Any]:
    from conch.gateway.ab.figures import BETTER, verdict
    from conch_build.plan_experiments import SHADOW

    baseline, *others = experiment.variants
    models = {name: part.model for name, part in experiment.variants.items()}
    if experiment.shadow is not None:
        others.append(SHADOW)
        models[SHADOW] = experiment.shadow.model
    total = sum(weights.values())
    verdicts = [
        verdict(kept.get(baseline, {}), kept.get(other, {}), other, experiment.decide_by, alpha=experiment.alpha)
        for other in others
    ]
    return {
        "decide_by": experiment.decide_by,
        "variants": {
            name: {
                "model": model,
                "share": weights.get(name, 0.0) / total,
                **{figure: _figure(kept, name, figure) for figure in BETTER},
            }
            for name, model in models.items()
        },
        "verdicts": [
            {
                "variant": found.variant,
                "outcome": found.outcome,
                "difference": vars(found.found) if found.found else None,
                "text": str(found),
            }
            for found in verdicts
        ],
        "events": [{"at": event.at, "text": event.text} for event in events],
    }


def _figure(kept: Kept, variant: str, figure: str) -> dict[str, float] | None:
    seen = kept.get(variant, {}).get(figure)
    return {"count": seen.count, "mean": seen.mean} if seen and seen.count else None


def _text(name: str, report: dict[str, Any]) -> str:
    figures = ("errors", "ttft", "e2e", "cost", "quality")
    rows = [
        (
            variant,
            part["model"],
            f"{part['share']:.0%}",
            str(part["errors"]["count"]) if part["errors"] else "0",
            *(f"{part[figure]['mean']:.4g}" if part[figure] else "-" for figure in figures),
        )
        for variant, part in report["variants"].items()
    ]
    heads = ("variant", "model", "share", "requests", "errors", "TTFT s", "E2E s", "USD", "quality")
    lines = [f"{name} (decided by {report['decide_by']})", table(heads, rows)]
    lines += [found["text"] for found in report["verdicts"]]
    for event in report["events"]:
        lines.append(f"{datetime.fromtimestamp(event['at']):%Y-%m-%d %H:%M:%S}  {event['text']}")
    return "\n".join(lines)
