"""The figures of a round, or of several together, out of its requests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from conch.bench.traffic.busy import work_of
from conch.bench.traffic.record import Record, token_gaps
from conch.bench.traffic.slo import SHARE, Limits
from conch_build.cost import Price, token_cost

SHARES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
TIMES = ("ttft", "itl", "tpot", "e2e", "gap", "late")
"""Of first tokens, between tokens, a request's mean between tokens, of whole answers; between arrivals as a reader sees
them; and how late the load generator sent a request."""


@dataclass(frozen=True)
class Round:
    """What was measured in one go. `seconds` by the clock, `own_seconds` of the load generator's own CPU time."""

    records: Sequence[Record]
    seconds: float
    own_seconds: float = 0.0
    counted: Mapping[str, float] = field(default_factory=dict)
    """What the server's own counters grew by; see `counters`."""
    joules: float | None = None


@dataclass(frozen=True)
class Terms:
    """What the figures are held against."""

    limits: Limits | None = None
    price: Price | None = None


def times(records: Sequence[Record]) -> dict[str, list[float]]:
    """Every latency in milliseconds, by the names of TIMES. Those who were cancelled count up to their end."""
    heard = [record for record in records if record.arrivals and record.error is None]
    answered = [record for record in heard if not record.cancelled]
    seconds: dict[str, list[float]] = {
        "ttft": [record.ttft for record in heard],
        "itl": [gap for record in heard for gap in token_gaps(record.arrivals, record.pieces, record.tokens)],
        "tpot": [record.tpot for record in heard if record.tpot is not None],
        "e2e": [record.e2e for record in answered],
        "gap": [after - before for record in heard for before, after in pairwise(record.arrivals)],
        "late": [record.sent - record.due for record in records],
    }
    return {name: [1e3 * value for value in values] for name, values in seconds.items()}


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles (linear between the closest ranks); None of no values."""
    if not values:
        return {"mean": None, **dict.fromkeys(SHARES)}
    found = np.percentile(values, list(SHARES.values())).tolist()
    return {"mean": float(np.mean(values)), **dict(zip(SHARES, found, strict=True))}


def measures(rounds: Sequence[Round], terms: Terms) -> dict[str, Any]:
    """One flat row: counts, rates, latencies (`ttft_p50_ms`), goodput, hits, energy, cost. None: not known."""
    records = [record for one in rounds for record in one.records]
    seconds = sum(one.seconds for one in rounds)
    answered = [record for record in records if record.answered]
    tokens_out = sum(record.tokens for record in records)
    latencies = {
        f"{name}_{share}_ms": value
        for name, values in times(records).items()
        for share, value in spread(values).items()
    }
    return {
        "requests": len(records),
        "answered": len(answered),
        "cancelled": sum(record.cancelled for record in records),
        "errors": dict(Counter(record.error for record in records if record.error)),
        "seconds": seconds,
        "requests_per_second": len(answered) / seconds,
        "tokens_per_second": tokens_out / seconds,
        "input_tokens_per_second": sum(r.prompt_tokens for r in records) / seconds,
        **latencies,
        **_good(records, seconds, terms.limits),
        **_hits(rounds, records),
        **_energy(rounds, tokens_out),
        **_cost(rounds, terms.price),
        "generator_cpu_share": sum(one.own_seconds for one in rounds) / seconds,
    }


def _good(records: Sequence[Record], seconds: float, limits: Limits | None) -> dict[str, Any]:
    if limits is None:
        return {"goodput_per_second": None, "good_share": None, "slo_met": None}
    asked = [record for record in records if not record.cancelled]
    good = sum(limits.kept(record) for record in asked)
    share = good / len(asked) if asked else None
    return {
        "goodput_per_second": good / seconds,
        "good_share": share,
        "slo_met": None if share is None else share >= SHARE,
    }


def _hits(rounds: Sequence[Round], records: Sequence[Record]) -> dict[str, float | None]:
    """Shares by what the answers told, else by the server's counters."""
    counted: Counter[str] = Counter()
    for one in rounds:
        counted.update(one.counted)
    told = [record for record in records if record.cached_tokens is not None]
    drafted = [record for record in records if record.draft_tokens is not None]
    return {
        "prefix_hit_share": _ratio(
            sum(r.cached_tokens or 0 for r in told) if told else counted["hit_tokens"],
            sum(r.prompt_tokens for r in told) if told else counted["prompt_tokens"],
        ),
        "draft_acceptance": _ratio(
            sum(r.accepted_tokens or 0 for r in drafted) if drafted else counted["accepted_tokens"],
            sum(r.draft_tokens or 0 for r in drafted) if drafted else counted["draft_tokens"],
        ),
    }


def _energy(rounds: Sequence[Round], tokens: int) -> dict[str, float | None]:
    joules = [one.joules for one in rounds if one.joules is not None]
    whole = sum(joules) if joules and len(joules) == len(rounds) else None
    return {"joules": whole, "joules_per_token": _ratio(whole, tokens) if whole is not None else None}


def _cost(rounds: Sequence[Round], price: Price | None) -> dict[str, float | None]:
    if price is None:
        return {}
    work = work_of(rounds[0].records)
    for one in rounds[1:]:
        work += work_of(one.records)
    return {"busy_seconds": work.busy_seconds, **token_cost(price, work).as_dict()}


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole
