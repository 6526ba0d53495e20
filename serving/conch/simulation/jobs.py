"""One simulated request, and the time between tokens of all of them. Decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_FINENESS = 400
"""Gaps are kept in classes that differ by 1/400."""


@dataclass(slots=True, eq=False)
class Job:
    """Times are seconds of the simulation; `due` is when it is sent."""

    number: int
    due: float
    prompt: Sequence[int]
    answer: int
    """Tokens, all of which it will get."""
    shared: int = 0
    """Tokens at the start of the prompt that all have."""
    admitted: float = 0.0
    """When the gateway let it in."""
    scheduled: float = 0.0
    """When an engine first computed a token of it."""
    produced: int = 0
    first: float = 0.0
    last: float = 0.0
    moved: float = 0.0
    """Seconds that its keys and values travelled, waiting for the link included."""
    cached: int = 0
    """Tokens of the prompt that were there already."""
    error: str | None = None
    """Why it was not answered."""
    began_anew: int = 0
    """Times that another server had to begin it again."""

    @property
    def size(self) -> int:
        """Tokens that an engine must have computed before the next one of the answer."""
        return len(self.prompt) + self.produced


@dataclass(slots=True)
class Gaps:
    """Times between two tokens of an answer."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float, count: int = 1) -> None:
        if seconds > 0:
            self.counts[round(math.log(seconds) * _FINENESS)] += count

    def percentile(self, share: float) -> float | None:
        """Seconds that a `share` of the gaps does not exceed; None of none."""
        wanted = share * self.counts.total()
        seen = 0
        for key in sorted(self.counts):
            seen += self.counts[key]
            if seen >= wanted:
                return math.exp(key / _FINENESS)
        return None

    @property
    def mean(self) -> float | None:
        total = self.counts.total()
        return sum(math.exp(key / _FINENESS) * count for key, count in self.counts.items()) / total if total else None
