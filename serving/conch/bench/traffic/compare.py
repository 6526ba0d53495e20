"""Two sides over the same loads in paired rounds: a ratio with its interval, and a verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conch.bench.traffic.statistics import Ratio, paired_ratio
from conch_build.errors import InputError

METRICS = {
    "tokens_per_second": True,
    "requests_per_second": True,
    "goodput_per_second": True,
    "ttft_p50_ms": False,
    "ttft_p99_ms": False,
    "itl_p50_ms": False,
    "itl_p99_ms": False,
    "tpot_p50_ms": False,
    "e2e_p50_ms": False,
    "e2e_p99_ms": False,
}
"""What is compared -> whether more is better."""

FASTER, SLOWER, SAME, UNCLEAR = "faster", "slower", "no difference", "unclear"
EXIT_CODES = {FASTER: 0, SAME: 0, SLOWER: 10, UNCLEAR: 11}

Rows = Mapping[str, Mapping[str, Any]]
"""A round of one side: load -> its figures."""


@dataclass(frozen=True)
class Compared:
    """`ratio`: B's value over A's; `speed`: the same turned so that above 1 is better."""

    load: str
    metric: str
    a: float
    b: float
    ratio: Ratio
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(pairs: Sequence[tuple[Rows, Rows]], within: float, confidence: float) -> list[Compared]:
    """Every metric at every load that both sides have. Raises InputError where they have none in common."""
    loads = [load for load in pairs[0][0] if all(load in rows for pair in pairs for rows in pair)] if pairs else []
    if not loads:
        raise InputError("the two sides have no load in common", fix="Measure both with the same options.")
    return [
        found
        for load in loads
        for metric, more_is_better in METRICS.items()
        if (found := _compared(load, metric, more_is_better, pairs, within, confidence)) is not None
    ]


def verdict(ratio: Ratio, more_is_better: bool, within: float) -> str:
    """`no difference`: the whole interval lies within 1 -+ `within`; else faster or slower where 1 is outside of it."""
    if ratio.low is None or ratio.high is None:
        return UNCLEAR
    if 1 - within <= ratio.low and ratio.high <= 1 + within:
        return SAME
    if ratio.low > 1 or ratio.high < 1:
        return FASTER if (ratio.low > 1) == more_is_better else SLOWER
    return UNCLEAR


def worst(verdicts: Sequence[str]) -> str:
    """Of several: slower, else unclear, else faster where one is, else no difference."""
    return next((word for word in (SLOWER, UNCLEAR, FASTER) if word in verdicts), SAME)


def _compared(
    load: str,
    metric: str,
    more_is_better: bool,
    pairs: Sequence[tuple[Rows, Rows]],
    within: float,
    confidence: float,
) -> Compared | None:
    values = [(a[load].get(metric), b[load].get(metric)) for a, b in pairs]
    known = [(a, b) for a, b in values if a and b]  # 0 has no logarithm, None is not known
    if len(known) < len(values):
        return None
    ones, others = [a for a, _ in known], [b for _, b in known]
    ratio = paired_ratio(ones, others, confidence)
    mean = [sum(side) / len(side) for side in (ones, others)]
    return Compared(load, metric, mean[0], mean[1], ratio, verdict(ratio, more_is_better, within))
