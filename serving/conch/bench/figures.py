"""From timings of requests to the figures of a table. Pure; knows nothing of how they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Timing:
    """One request. `arrivals`: when each piece of the answer came, in seconds from the request's start."""

    arrivals: tuple[float, ...]
    tokens: int
    prompt_tokens: int

    @property
    def first(self) -> float:
        return self.arrivals[0]

    @property
    def last(self) -> float:
        return self.arrivals[-1]


@dataclass(frozen=True)
class Figures:
    """One round at one concurrency."""

    concurrency: int
    requests: int
    seconds: float
    tokens_per_second: float
    """Generated tokens of all requests over the wall time of the round."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    """Inter-token latency of a request: (last - first) / (tokens - 1), whatever the chunks held."""
    itl_p95_ms: float
    gap_p99_ms: float
    """Time between two arrivals as a reader sees it, over all requests: stalls show here and not in the ITL."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks, as numpy's default does. `share` from 0 to 1."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarize(concurrency: int, seconds: float, timings: Sequence[Timing]) -> Figures:
    first = [timing.first * 1e3 for timing in timings]
    itl = [1e3 * (timing.last - timing.first) / (timing.tokens - 1) for timing in timings if timing.tokens > 1]
    gaps = [1e3 * (after - before) for timing in timings for before, after in pairwise(timing.arrivals)]
    return Figures(
        concurrency=concurrency,
        requests=len(timings),
        seconds=seconds,
        tokens_per_second=sum(timing.tokens for timing in timings) / seconds,
        ttft_p50_ms=percentile(first, 0.5),
        ttft_p95_ms=percentile(first, 0.95),
        itl_p50_ms=percentile(itl, 0.5),
        itl_p95_ms=percentile(itl, 0.95),
        gap_p99_ms=percentile(gaps, 0.99),
    )
