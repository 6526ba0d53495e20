"""Student's t without a library: distribution, quantile, and the interval of a ratio measured in pairs. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """B over A. `low` and `high` are None of a single pair."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for a whole number of degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    even = freedom % 2 == 0
    term = 1.0 if even else cosine
    total = term if freedom > 1 else 0.0
    for n in range(2 if even else 3, freedom - 1, 2):
        term *= cosine * cosine * (n - 1) / n
        total += term
    inside = sine * total if even else 2 / math.pi * (angle + sine * total)
    return 0.5 + inside / 2


def t_quantile(share: float, freedom: int) -> float:
    """The t below which `share` (0.5 to 1) of the distribution lies."""
    high = 1.0
    while t_cdf(high, freedom) < share:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float) -> Ratio:
    """The geometric mean of b[i] / a[i], and its interval by Student's t on their logarithms.

    Rounds of a pair ran one right after the other, so that what slows both falls out. All values are above 0.
    """
    logs = [math.log(other / one) for one, other in zip(a, b, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None, len(logs))
    reach = t_quantile((1 + confidence) / 2, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs))
