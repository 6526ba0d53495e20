"""Figures out of timings."""

from __future__ import annotations

import pytest

from conch.bench.figures import Timing, percentile, summarize


def test_percentiles_lie_between_the_closest_ranks() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([1, 2, 3], 1) == 3
    assert percentile([7], 0.99) == 7


def test_the_rate_counts_tokens_over_the_wall_time_of_the_round() -> None:
    timings = [Timing((0.1, 0.2, 0.3), 3, 10), Timing((0.2, 0.3, 0.4), 3, 10)]
    figures = summarize(2, 0.5, timings)
    assert figures.tokens_per_second == 12
    assert figures.ttft_p50_ms == pytest.approx(150)


def test_itl_is_a_requests_mean_whatever_its_chunks_held() -> None:
    one_by_one = Timing((0.1, 0.2, 0.3, 0.4, 0.5), 5, 1)
    in_two_chunks = Timing((0.1, 0.5), 5, 1)
    assert summarize(1, 1, [one_by_one]).itl_p50_ms == pytest.approx(100)
    assert summarize(1, 1, [in_two_chunks]).itl_p50_ms == pytest.approx(100)


def test_a_stall_shows_in_the_gaps_and_hardly_in_the_itl() -> None:
    arrivals = tuple(0.01 * n + (0.5 if n > 50 else 0) for n in range(1, 101))
    figures = summarize(1, 2, [Timing(arrivals, 100, 1)])
    assert figures.itl_p50_ms < 16
    assert figures.gap_p99_ms > 10
    assert summarize(1, 2, [Timing(arrivals[48:53], 5, 1)]).gap_p99_ms > 490
