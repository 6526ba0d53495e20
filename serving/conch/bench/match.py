"""A match: our formats and one peer, all running, asked in turn the same things over several rounds.

A side that fails is left out from then on, with its reason; the match goes on while there is someone to compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conch.bench.contests import Cell, turns
from conch.bench.figures import Figures
from conch.bench.sides import Facts, Side
from conch.bench.workloads import SHORT, Texts, Workload, figures, jobs, tiny
from conch_build.errors import ConchError

Make = Callable[[], Side]
Say = Callable[[str], None]

START_SECONDS = 900.0
"""vLLM compiles its graphs at the first start."""


@dataclass
class Entrant:
    """A side that started. `resident_bytes`: the most that its processes held after a round."""

    facts: Facts
    start_seconds: float
    resident_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.facts.as_dict(),
            "start_seconds": self.start_seconds,
            "resident_bytes": self.resident_bytes,
        }


@dataclass
class Match:
    """What came of it. `cells`: (side, workload, concurrency) -> its cells, two where prompts are repeated."""

    peer: str
    ours: tuple[str, ...]
    entrants: dict[str, Entrant] = field(default_factory=dict)
    cells: dict[tuple[str, str, int], list[Cell]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nobody is left to be compared: no peer, or none of ours where some took part."""
        gone = self.failures.keys()
        return self.peer in gone or (bool(self.ours) and gone >= set(self.ours))

    def as_dict(self) -> dict[str, Any]:
        return {
            "peer": self.peer,
            "sides": {name: entrant.as_dict() for name, entrant in self.entrants.items()},
            "cells": [
                {"side": side, "workload": workload, "concurrency": concurrency, "cells": [c.as_dict() for c in cells]}
                for (side, workload, concurrency), cells in self.cells.items()
            ],
            "failures": self.failures,
        }


def play(
    peer: str,
    makers: Mapping[str, Make],
    workloads: Sequence[Workload],
    concurrencies: Sequence[int],
    rounds: int,
    texts: Texts,
    say: Say,
) -> Match:
    """Start every side of `makers` (`peer` among them), warm it up, measure, and end them all."""
    match = Match(peer, tuple(name for name in makers if name != peer))
    running: dict[str, Side] = {}
    try:
        for name, make in makers.items():
            say(f"starting {name}")
            try:
                running[name] = side = make()
                started = time.monotonic()
                side.start(START_SECONDS)
                match.entrants[name] = Entrant(side.facts, time.monotonic() - started)
                warm_up = jobs(tiny(SHORT), min(max(concurrencies), side.facts.most_at_once), -1, texts)
                side.measure(warm_up[-1])
            except ConchError as error:
                _leave(match, running, name, error, say)
            if match.over:
                return match
        for workload in workloads:
            for concurrency in _levels(workload, concurrencies, running):
                _measure(match, running, workload, concurrency, rounds, texts, say)
                if match.over:
                    return match
    finally:
        for side in running.values():
            side.process.stop()
    return match


def _levels(workload: Workload, concurrencies: Sequence[int], running: Mapping[str, Side]) -> list[int]:
    most = min(side.facts.most_at_once for side in running.values())
    return [1] if workload.repeats else [level for level in concurrencies if level <= most]


def _measure(
    match: Match,
    running: dict[str, Side],
    workload: Workload,
    concurrency: int,
    rounds: int,
    texts: Texts,
    say: Say,
) -> None:
    found: dict[str, list[list[Figures]]] = {name: [] for name in running}
    for round_number in range(rounds):
        asked = jobs(workload, concurrency, round_number, texts)
        for name in turns(list(running), round_number):
            say(f"{workload.name}, {concurrency} at once, round {round_number + 1} of {rounds}: {name}")
            try:
                for job in asked:
                    measured = running[name].measure(job)
                found[name].append(figures(workload, asked[-1], measured))
            except ConchError as error:
                _leave(match, running, name, error, say)
            if match.over:
                return
    for name, side in running.items():
        cells = [Cell(tuple(of_rounds)) for of_rounds in zip(*found[name], strict=True)]
        match.cells[name, workload.name, concurrency] = cells
        entrant = match.entrants[name]
        entrant.resident_bytes = max(entrant.resident_bytes, side.process.resident_bytes())


def _leave(match: Match, running: dict[str, Side], name: str, error: ConchError, say: Say) -> None:
    match.failures[name] = error.message
    say(f"{name} is left out: {error.message}")
    if side := running.pop(name, None):
        side.process.stop()
