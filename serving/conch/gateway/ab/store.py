"""What experiments have come to, in the gateway's database: weights, observations, who answered what, what happened.

Every function takes an open transaction. Several gateways, and `conch ab`, may work on the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, Index, Integer, String, Table, delete, insert, select, update

from conch.gateway.ab.sequential import Moments
from conch.gateway.database import metadata
from conch_build.plan_experiments import Experiment

KEEP_ANSWERS_SECONDS = 30 * 86400.0
"""How long an answer can get its feedback."""

_weights = Table(
    "ab_weights",
    metadata,
    Column("experiment", String(255), primary_key=True),
    Column("variant", String(255), primary_key=True),
    Column("weight", Float, nullable=False),
    Column("planned", Float, nullable=False),
    Column("place", Integer, nullable=False),
)
_moments = Table(
    "ab_moments",
    metadata,
    Column("experiment", String(255), primary_key=True),
    Column("variant", String(255), primary_key=True),
    Column("figure", String(32), primary_key=True),
    Column("seen", Integer, nullable=False),
    Column("mean", Float, nullable=False),
    Column("spread", Float, nullable=False),
)
_answers = Table(
    "ab_answers",
    metadata,
    Column("answer", String(64), primary_key=True),
    Column("experiment", String(255), nullable=False),
    Column("variant", String(255), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("score", Float),
    Index("ab_answers_at", "at"),
)
_events = Table(
    "ab_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("experiment", String(255), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("text", String(1000), nullable=False),
)

Kept = dict[str, dict[str, Moments]]
"""Variant -> figure -> observations."""


@dataclass(frozen=True)
class Answered:
    """An answer that a variant has given; `owner`: the key that asked, empty where there are no keys."""

    answer: str
    experiment: str
    variant: str
    owner: str


@dataclass(frozen=True)
class Event:
    at: float
    """Seconds since 1970."""
    text: str


def enroll(connection: Connection, name: str, experiment: Experiment) -> None:
    """The plan's weights, where they are new to the database; weights that were steered since stay as they are.

    An experiment whose variants or planned weights have changed begins anew, without its observations.
    """
    planned = {variant: part.weight for variant, part in experiment.variants.items()}
    query = select(_weights.c.variant, _weights.c.planned).where(_weights.c.experiment == name)
    found = [(row.variant, row.planned) for row in connection.execute(query.order_by(_weights.c.place))]
    if found == list(planned.items()):
        return
    for table in (_weights, _moments):
        connection.execute(delete(table).where(table.c.experiment == name))
    rows = [
        {"experiment": name, "variant": variant, "weight": weight, "planned": weight, "place": place}
        for place, (variant, weight) in enumerate(planned.items())
    ]
    connection.execute(insert(_weights), rows)
    record(connection, name, f"begun with {_told(planned)}")


def weights(connection: Connection, name: str) -> dict[str, float]:
    """In the plan's order; empty for an experiment that no gateway has begun."""
    query = select(_weights.c.variant, _weights.c.weight).where(_weights.c.experiment == name)
    return {row.variant: row.weight for row in connection.execute(query.order_by(_weights.c.place))}


def steer(connection: Connection, name: str, wanted: Mapping[str, float], reason: str) -> bool:
    """Set some weights. False when they were so already: somebody else was first.

    Figures begin anew: those of times with other shares, pooled, would compare quiet hours with busy ones.
    """
    if not _set(connection, name, wanted, reason):
        return False
    connection.execute(delete(_moments).where(_moments.c.experiment == name))
    return True


def stop(connection: Connection, name: str, variant: str, reason: str) -> bool:
    """No more requests for a variant; the baseline takes over when nobody else would get any."""
    before = weights(connection, name)
    baseline = next(iter(before))
    wanted = {variant: 0.0}
    if not any(weight for other, weight in before.items() if other != variant):
        wanted[baseline] = 1.0
    return _set(connection, name, wanted, reason)


def _set(connection: Connection, name: str, wanted: Mapping[str, float], reason: str) -> bool:
    before = weights(connection, name)
    changed = {variant: weight for variant, weight in wanted.items() if before.get(variant) != weight}
    for variant, weight in changed.items():
        row = (_weights.c.experiment == name) & (_weights.c.variant == variant)
        connection.execute(update(_weights).where(row).values(weight=weight))
    if changed:
        record(connection, name, f"{_told(changed)}: {reason}")
    return bool(changed)


def experiments(connection: Connection) -> list[str]:
    return list(connection.execute(select(_weights.c.experiment).distinct().order_by(_weights.c.experiment)).scalars())


def kept(connection: Connection, name: str) -> Kept:
    query = select(_moments).where(_moments.c.experiment == name)
    found: Kept = {}
    for row in connection.execute(query):
        found.setdefault(row.variant, {})[row.figure] = Moments(row.seen, row.mean, row.spread)
    return found


def add(connection: Connection, name: str, variant: str, figure: str, new: Moments) -> None:
    """Observations beside those that are there."""
    row = (_moments.c.experiment == name) & (_moments.c.variant == variant) & (_moments.c.figure == figure)
    found = connection.execute(select(_moments).where(row).with_for_update()).one_or_none()
    if found is None:
        values = {"seen": new.count, "mean": new.mean, "spread": new.spread}
        connection.execute(insert(_moments).values(experiment=name, variant=variant, figure=figure, **values))
        return
    both = Moments(found.seen, found.mean, found.spread).merged(new)
    connection.execute(update(_moments).where(row).values(seen=both.count, mean=both.mean, spread=both.spread))


def remember(connection: Connection, answers: Iterable[Answered]) -> None:
    """Who gave which answer; those of long ago are forgotten."""
    now = time.time()
    rows = [{**vars(answer), "at": now} for answer in answers]
    if rows:
        connection.execute(insert(_answers), rows)
    connection.execute(delete(_answers).where(_answers.c.at < now - KEEP_ANSWERS_SECONDS))


def score(connection: Connection, answer: str, owner: str, value: float) -> tuple[str, str, float | None] | None:
    """Keep the score of an answer, and count it for its variant; the first one stays.

    (experiment, variant, the score that it had already), or None for an answer that is not known.
    """
    row = (_answers.c.answer == answer) & (_answers.c.owner == owner)
    found = connection.execute(select(_answers).where(row).with_for_update()).one_or_none()
    if found is None:
        return None
    if found.score is None:
        connection.execute(update(_answers).where(row).values(score=value))
        add(connection, found.experiment, found.variant, "quality", Moments().plus(value))
    return found.experiment, found.variant, found.score


def record(connection: Connection, name: str, text: str) -> None:
    connection.execute(insert(_events).values(experiment=name, at=time.time(), text=text[:1000]))


def events(connection: Connection, name: str, limit: int = 20) -> list[Event]:
    """The newest first."""
    query = select(_events.c.at, _events.c.text).where(_events.c.experiment == name)
    return [Event(row.at, row.text) for row in connection.execute(query.order_by(_events.c.id.desc()).limit(limit))]


def _told(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{variant}={weight:g}" for variant, weight in weights.items())
