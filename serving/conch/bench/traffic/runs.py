"""All loads of a run, measured in turn, with progress told on stderr."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conch.bench.traffic.measures import Round, measures
from conch.bench.traffic.ramp import ramp_concurrency, ramp_rate
from conch.bench.traffic.record import Record
from conch.bench.traffic.setup import Options, loads_of
from conch.bench.traffic.trial import Load, Trial, row_of
from conch_build.console import Progress

T = TypeVar("T")
_PER_LEVEL = 3
"""Requests of a ramp's level, for each that runs at once."""


@dataclass
class Run:
    """Load -> its rounds, in the order in which they were measured. `saturation`: what a ramp found."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    saturation: dict[str, float] | None = None

    def add(self, load: Load, one: Round) -> None:
        self.loads[load.label] = load
        self.rounds.setdefault(load.label, []).append(one)

    def rows(self, trial: Trial) -> list[dict[str, Any]]:
        return [row_of(self.loads[label], rounds, trial.terms) for label, rounds in self.rounds.items()]

    def detail(self, trial: Trial) -> list[dict[str, Any]]:
        """Every round, with its figures and requests."""
        return [
            {
                "round": number,
                "figures": row_of(self.loads[label], [one], trial.terms),
                "requests": [record.as_dict() for record in one.records],
            }
            for label, rounds in self.rounds.items()
            for number, one in enumerate(rounds)
        ]


def in_loop(work: Awaitable[T]) -> T:
    """Run it in uvloop, which takes half of asyncio's time a token."""
    import uvloop

    async def main() -> T:
        return await work

    result: T = uvloop.run(main())
    return result


async def run(trial: Trial, options: Options) -> Run:
    """Warm up, then every load of `options`, `options.rounds` times."""
    await trial.warm_up()
    found, loads = Run(), loads_of(options)
    if options.ramp is not None:
        await _ramp(trial, options, found)
    for load in loads:
        for number in range(options.rounds):
            found.add(load, await measured(trial, load, f"{load.label}, round {number + 1} of {options.rounds}"))
    return found


async def measured(trial: Trial, load: Load, label: str) -> Round:
    """One round, with its progress."""
    began, done = time.monotonic(), 0
    tokens = 0
    total = load.count * trial.mix.turns if load.duration is None else max(round(load.duration), 1)
    with Progress(label, total) as progress:

        def on_record(record: Record) -> None:
            nonlocal done, tokens
            tokens += record.tokens
            past = time.monotonic() - began
            progress.label = f"{label}: {tokens / past:.0f} tok/s"
            ahead = 1 if load.duration is None else min(int(past), total) - done
            done += ahead
            progress.advance(ahead)

        return await trial.measure(load, on_record)


async def _ramp(trial: Trial, options: Options, found: Run) -> None:
    async def at(load: Load) -> dict[str, Any]:
        one = await measured(trial, load, load.label)
        found.add(load, one)
        return row_of(load, [one], trial.terms)

    duration = options.seconds

    async def at_once(level: float) -> dict[str, Any]:
        requests = None if duration else options.requests or _PER_LEVEL * int(level)
        return await at(Load(concurrency=int(level), requests=requests, duration=duration))

    async def a_second(rate: float) -> dict[str, Any]:
        return await at(Load(rate=rate, requests=options.requests, duration=duration))

    if options.ramp == "concurrency":
        level = await ramp_concurrency(at_once)
        best = measures(found.rounds[Load(concurrency=level).label], trial.terms)
        found.saturation = {"concurrency": level, "tokens_per_second": best["tokens_per_second"]}
    else:
        alone = await at_once(1)
        found.saturation = {"requests_per_second": await ramp_rate(a_second, alone["requests_per_second"])}


async def in_turns(sides: Sequence[tuple[Trial, Run]], options: Options) -> None:
    """Every load of both sides, one right after the other, each round beginning with another side."""
    for trial, _ in sides:
        await trial.warm_up()
    for load in loads_of(options):
        for number in range(options.rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                trial, found = sides[side]
                label = f"{'AB'[side]}, {load.label}, round {number + 1} of {options.rounds}"
                found.add(load, await measured(trial, load, label))
