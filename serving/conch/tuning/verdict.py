"""The plan's own settings and the best ones in turns, each at its own level, and what the rounds say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from conch.bench.traffic.compare import FASTER, Compared, compare
from conch.bench.traffic.slo import SHARE
from conch.tuning.climb import Row
from conch_build.cost import MILLION, Price

LOAD = "the most within the SLO"
CONFIDENCE = 0.95
_WITHIN = 0.02
Round = Callable[[int], Row]
"""Measures one round of a side; told its number."""


@dataclass(frozen=True)
class Verdict:
    pairs: Sequence[tuple[Row, Row]]
    """Of each round: the plan's own settings, the best ones."""
    compared: Sequence[Compared]

    @property
    def throughput(self) -> Compared:
        return next(one for one in self.compared if one.metric == "tokens_per_second")

    @property
    def own_kept(self) -> bool:
        """The plan's own settings kept the SLO, over all rounds."""
        return fmean(own["good_share"] for own, _ in self.pairs) >= SHARE

    @property
    def kept(self) -> bool:
        """The best settings did, as in the search."""
        return fmean(best["good_share"] for _, best in self.pairs) >= SHARE

    @property
    def proven(self) -> bool:
        """The best settings are better: they alone keep the SLO, or give more tokens within it beyond chance."""
        return self.kept and (not self.own_kept or self.throughput.verdict == FASTER)

    def as_dict(self, price: Price | None) -> dict[str, Any]:
        a, b = self.throughput.a, self.throughput.b
        return {
            "verdict": self.throughput.verdict,
            "own_kept": self.own_kept,
            "kept": self.kept,
            "proven": self.proven,
            "ratio": self.throughput.ratio.ratio,
            "interval": [self.throughput.ratio.low, self.throughput.ratio.high],
            "usd_per_million_generated": None if price is None else [_cost(price, a), _cost(price, b)],
            "compared": [one.as_dict() for one in self.compared],
            "rounds": [{"own": own, "best": best} for own, best in self.pairs],
        }


def in_turns(own: Round, best: Round, rounds: int) -> Verdict:
    """Both sides in every round, one right after the other, each round beginning with the other side."""
    pairs = []
    for number in range(rounds):
        if number % 2 == 0:
            first = own(number)
            pairs.append((first, best(number)))
        else:
            second = best(number)
            pairs.append((own(number), second))
    return Verdict(pairs, compare([({LOAD: a}, {LOAD: b}) for a, b in pairs], _WITHIN, CONFIDENCE))


def _cost(price: Price, tokens_a_second: float) -> float:
    return MILLION * price.usd(1.0) / tokens_a_second
