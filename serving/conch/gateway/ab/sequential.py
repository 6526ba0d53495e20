"""Is one variant better than another? An answer that stays true however often it is asked.

A test for a fixed size of sample is wrong more often than it says when one looks before the end and stops at the first
good news. The mixture sequential probability ratio test is not: with a normal prior of variance `tau`^2 on the
difference, the bound below holds at every time at once with probability 1 - alpha (Robbins, "Statistical methods
related to the law of the iterated logarithm", 1970; Johari, Koomen, Pekelis and Walsh, "Always valid inference:
continuous monitoring of A/B tests", 2022). Means of many observations are taken as normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST = 30
"""Observations of each side before their means are taken as normal."""


@dataclass(frozen=True)
class Moments:
    """What is kept of observations: their number, sum, and sum of squared distances from their mean (Welford)."""

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0

    def plus(self, value: float) -> Moments:
        count = self.count + 1
        step = value - self.mean
        mean = self.mean + step / count
        return Moments(count, mean, self.spread + step * (value - mean))

    def merged(self, other: Moments) -> Moments:
        """Of both sets of observations together (Chan, Golub and LeVeque, 1983)."""
        count = self.count + other.count
        if not count:
            return self
        step = other.mean - self.mean
        mean = self.mean + step * other.count / count
        return Moments(count, mean, self.spread + other.spread + step * step * self.count * other.count / count)

    @property
    def variance(self) -> float:
        return self.spread / (self.count - 1) if self.count > 1 else 0.0


@dataclass(frozen=True)
class Difference:
    """The mean of the second less that of the first, with the bounds that hold at every time at once."""

    value: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        return self.low > 0 or self.high < 0


def difference(first: Moments, second: Moments, *, alpha: float = 0.05) -> Difference | None:
    """None while either side has fewer than `LEAST` observations, or all observations of both are the same.

    `tau` is taken so that the bound is narrowest around a few hundred observations: tau^2 = variance / 100.
    """
    if min(first.count, second.count) < LEAST:
        return None
    noise = first.variance / first.count + second.variance / second.count
    if noise <= 0:
        return None
    tau = (first.variance + second.variance) / 2 / 100
    width = math.sqrt(noise * (noise + tau) / tau * (-2 * math.log(alpha) + math.log((noise + tau) / noise)))
    value = second.mean - first.mean
    return Difference(value, value - width, value + width)
