"""Verdicts and guard rails: what is certain is said, what is not is left open."""

from __future__ import annotations

import numpy as np
import pytest

from conch.gateway.ab.figures import BETTER, broken, verdict
from conch.gateway.ab.sequential import Moments
from conch_build.plan_experiments import Guard


def drawn(mean: float, count: int, seed: int, deviation: float = 0.1) -> Moments:
    kept = Moments()
    for value in np.random.default_rng(seed).normal(mean, deviation, count):
        kept = kept.plus(float(value))
    return kept


def failing(share: float, count: int) -> Moments:
    kept = Moments()
    for number in range(count):
        kept = kept.plus(float(number < share * count))
    return kept


@pytest.mark.parametrize("figure", BETTER)
def test_less_time_and_money_and_more_quality_are_better(figure: str) -> None:
    low, high = {figure: drawn(1.0, 500, 1)}, {figure: drawn(1.2, 500, 2)}
    rising = verdict(low, high, "b", figure, alpha=0.05)
    assert rising.outcome == ("better" if figure == "quality" else "worse")
    assert verdict(high, low, "b", figure, alpha=0.05).outcome != rising.outcome


def test_little_or_nothing_seen_leaves_it_open() -> None:
    some = {"e2e": drawn(1.0, 500, 1)}
    assert verdict(some, {"e2e": drawn(1.0, 500, 2)}, "b", "e2e", alpha=0.05).outcome == "open"
    few = verdict(some, {"e2e": drawn(5.0, 3, 2)}, "b", "e2e", alpha=0.05)
    assert (few.outcome, str(few)) == ("open", "b: too few requests to say")


@pytest.mark.parametrize(
    "guard, figure, baseline, bad, fine",
    [
        (Guard(errors_increase=0.05), "errors", failing(0.01, 400), failing(0.4, 200), failing(0.03, 200)),
        (Guard(ttft_ratio=1.5), "ttft", drawn(1, 400, 1), drawn(2, 400, 2), drawn(1.3, 400, 2)),
        (Guard(e2e_ratio=1.5), "e2e", drawn(1, 400, 1), drawn(2, 400, 2), drawn(1.3, 400, 2)),
        (Guard(cost_ratio=1.5), "cost", drawn(1, 400, 1), drawn(2, 400, 2), drawn(1.3, 400, 2)),
        (Guard(quality_decrease=0.1), "quality", drawn(0.8, 400, 1), drawn(0.5, 400, 2), drawn(0.75, 400, 2)),
    ],
)
def test_a_guard_rail_stops_what_has_certainly_passed_it(
    guard: Guard, figure: str, baseline: Moments, bad: Moments, fine: Moments
) -> None:
    reason = broken(guard, {figure: baseline}, {figure: bad})
    assert reason is not None and figure in reason
    assert broken(guard, {figure: baseline}, {figure: fine}) is None
