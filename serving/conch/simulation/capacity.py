"""The most requests a second that a fleet takes within limits, found by trying; and what breaks just above it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from conch.bench.traffic.slo import SHARE, Limits
from conch.simulation.figures import figures, weakest
from conch.simulation.fleet import Fleet, Outcome, run_open
from conch.simulation.workload import Workload
from conch_build.cost import Price
from conch_build.errors import InputError

_CLOSE = 1.06
"""The rate that holds and the one that does not lie at most so far apart."""


@dataclass(frozen=True)
class Question:
    workload: Workload
    limits: Limits
    server_price: Price | None = None
    seconds: float = 30.0
    """Of traffic in a trial, and at least four times what a request takes alone."""
    most_requests: int = 1_000_000
    """Of a trial."""


@dataclass(frozen=True)
class Found:
    """`row`: at `rate`, which holds. `broke`: the resource that fails first at `broke_at`, above it."""

    rate: float
    row: dict[str, Any]
    broke: str
    broke_at: float


def trial(fleet: Fleet, question: Question, rate: float, alone: float) -> tuple[dict[str, Any], Outcome]:
    seconds = max(question.seconds, 4 * alone)
    count = min(max(round(rate * seconds), 200), question.most_requests)
    outcome = run_open(fleet, question.workload.at_rate(rate, count))
    return figures(fleet, outcome, question.limits, question.server_price), outcome


def alone(fleet: Fleet, question: Question) -> float:
    """Seconds of a request when nobody else asks. Raises InputError where even those break the limits."""
    lonely = replace(fleet, failures=None, scaling=None)
    row, _ = trial(lonely, replace(question, seconds=0.0, most_requests=200), 1e-3, 0.0)
    if row["good_share"] < SHARE:
        raise InputError(
            f"cannot be kept: of requests that come one by one {row['good_share']:.0%} are good, with "
            f"TTFT {row['ttft_p95_ms']:.0f} ms and {row['tpot_p95_ms'] or 0:.1f} ms a token (p95)",
            where="the SLO",
            fix="Loosen it, shorten the requests, or take faster GPUs.",
        )
    return float(row["e2e_p50_ms"]) / 1e3


def capacity(fleet: Fleet, question: Question, guess: float, growth: float = 1.6) -> Found:
    """`guess`: a rate to begin with; `growth`: by what it is changed until one rate holds and one does not.

    Raises InputError where no rate holds.
    """
    lonely = max(alone(fleet, question), _patience(question))
    held: tuple[float, dict[str, Any]] | None = None
    failed: tuple[float, str] | None = None
    rate = guess
    while held is None or failed is None or failed[0] > _CLOSE * held[0]:
        row, outcome = trial(fleet, question, rate, lonely)
        if row["slo_met"]:
            held = rate, row
        else:
            failed = rate, weakest(row, outcome, question.limits)
        if held is None:
            rate = rate / growth
            if rate < 1e-4:
                raise InputError("no rate of requests keeps it", where="the SLO", fix="Loosen it.")
        elif failed is None:
            rate = rate * growth
        else:
            rate = (held[0] * failed[0]) ** 0.5
    return Found(held[0], held[1], failed[1], failed[0])


def _patience(question: Question) -> float:
    """Seconds of an answer that only just keeps its limits: a trial must outlast several to show what lasts."""
    limits = question.limits.seconds
    answers = [job.answer for job in question.workload.jobs([0.0] * 200)]
    token = min(limits.get("itl", 0.0) or limits.get("tpot", 0.0), 1.0)
    return limits.get("ttft", 0.0) + sum(answers) / len(answers) * token
