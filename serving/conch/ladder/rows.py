"""From what was measured to the rows of the ladder: throughput, tails, factors with intervals, cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from conch.bench.figures import Timing, percentile
from conch.bench.traffic.statistics import paired_ratio
from conch.ladder.rungs import Rung
from conch_build.cost import Price, usd_per_million
from conch_build.quality import Figures

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Round:
    seconds: float
    timings: Sequence[Timing]

    @property
    def tokens(self) -> int:
        return sum(timing.tokens for timing in self.timings)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Climbed:
    """A rung as far as it went. `skipped`: why it could not, or not any more."""

    rung: Rung
    rounds: list[Round] = field(default_factory=list)
    peak_bytes: int = 0
    """Resident memory of its process."""
    quality: Figures | None = None
    """Of quantized weights, beside the unquantized build's."""
    skipped: str | None = None


def rows_of(climbed: Sequence[Climbed], ladder: Sequence[Rung], price: Price | None) -> list[dict[str, Any]]:
    """A row for each rung that was chosen of the `ladder`. Factors are over the nearest rung below that was measured,
    and over the first one."""
    measured = {one.rung.name: one for one in climbed if one.skipped is None}
    over = {rung.name: rung.over for rung in ladder}
    first = next(iter(measured.values()), None)
    return [_row(one, _below(one.rung, over, measured), first, price) for one in climbed]


def _below(rung: Rung, over: Mapping[str, str | None], measured: Mapping[str, Climbed]) -> Climbed | None:
    """Where the rung that it stands on was not measured, the one below that."""
    name = rung.over
    while name is not None and name not in measured:
        name = over[name]
    return measured.get(name) if name is not None else None


def _row(one: Climbed, below: Climbed | None, first: Climbed | None, price: Price | None) -> dict[str, Any]:
    text = one.quality.text if one.quality else None
    row: dict[str, Any] = {
        "rung": one.rung.name,
        "title": one.rung.title,
        "skipped": one.skipped,
        "rounds": len(one.rounds),
        "requests": len(one.rounds[0].timings) if one.rounds else None,
        "tokens_per_second": None,
        "ttft_p50_ms": None,
        "e2e_p99_ms": None,
        "gap_p99_ms": None,
        "peak_bytes": one.peak_bytes or None,
        "usd_per_million_generated": None,
        "over": below.rung.name if below else None,
        "factor": None,
        "factor_interval": None,
        "baseline": first.rung.name if first else None,
        "factor_over_baseline": None,
        "factor_over_baseline_interval": None,
        "perplexity": text.perplexity if text else None,
        "perplexity_ratio": text.perplexity_ratio if text else None,
        "perplexity_ratio_interval": text.perplexity_ratio_interval if text else None,
    }
    if one.skipped is not None:
        return row
    timings = [timing for round_ in one.rounds for timing in round_.timings]
    seconds, tokens = sum(round_.seconds for round_ in one.rounds), sum(round_.tokens for round_ in one.rounds)
    gaps = [after - before for timing in timings for before, after in pairwise(timing.arrivals)]
    row |= {
        "tokens_per_second": fmean(round_.tokens_per_second for round_ in one.rounds),
        "ttft_p50_ms": 1e3 * percentile([timing.first for timing in timings], 0.5),
        "e2e_p99_ms": None if one.rung.cuts_answers else 1e3 * percentile([timing.last for timing in timings], 0.99),
        "gap_p99_ms": 1e3 * percentile(gaps, 0.99),
        "usd_per_million_generated": usd_per_million(price.usd(seconds), tokens) if price else None,
    }
    for name, other in (("factor", below), ("factor_over_baseline", first)):
        if other is not None and other is not one:
            row |= _factor(name, other, one)
    return row


def _factor(name: str, below: Climbed, one: Climbed) -> dict[str, Any]:
    """Throughput over that of `below`, from the rounds that both were in."""
    pairs = list(zip(below.rounds, one.rounds, strict=False))
    sides = [[round_.tokens_per_second for round_ in side] for side in zip(*pairs, strict=True)]
    ratio = paired_ratio(sides[0], sides[1], CONFIDENCE)
    return {name: ratio.ratio, f"{name}_interval": None if ratio.low is None else [ratio.low, ratio.high]}
