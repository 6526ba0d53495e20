"""One request: what was asked, and all that is kept of what came back. Knows nothing of how it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

Content = str | tuple[int, ...]
"""Of a prompt or an answer: text, or token ids."""


@dataclass(frozen=True)
class Ask:
    """`parts`: what was said so far, the user first, then in turns."""

    model: str
    parts: tuple[Content, ...]
    max_tokens: int
    cancel_after: int | None = None
    """Leave when so many pieces of the answer have come."""


@dataclass(slots=True)
class Record:
    """Times are seconds since the round began. Latencies count from `due`: when it should have been sent."""

    number: int
    model: str
    due: float
    turn: int = 0
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """When something of the answer was read."""
    pieces: list[int] = field(default_factory=list)
    """How much came with each arrival: tokens where the server tells them apart, else its chunks."""
    ended: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    error: str | None = None
    """Its kind; None: it was answered, or `cancelled` by us."""
    message: str | None = None
    cancelled: bool = False

    @property
    def answered(self) -> bool:
        return self.error is None and not self.cancelled and bool(self.arrivals)

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.due

    @property
    def e2e(self) -> float:
        return self.ended - self.due

    @property
    def tpot(self) -> float | None:
        """Mean time of a token after the first: (last - first) / (tokens - 1)."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1) if self.tokens > 1 else None

    def arrived(self, now: float, pieces: int = 1) -> None:
        """Pieces that are read at once are one arrival."""
        if self.arrivals and now == self.arrivals[-1]:
            self.pieces[-1] += pieces
        else:
            self.arrivals.append(now)
            self.pieces.append(pieces)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Record:
        return cls(**data)


def token_gaps(arrivals: Sequence[float], pieces: Sequence[int], tokens: int) -> list[float]:
    """Inter-token latencies: a gap before a chunk of several tokens is shared out among them.

    The first arrival holds as many tokens as pieces; the others hold the rest, in proportion to their pieces. The
    result adds up to last - first.
    """
    rest = tokens - pieces[0] if pieces else 0
    if len(arrivals) < 2 or rest < 1:
        return []
    told = np.cumsum([0, *pieces[1:]]) / sum(pieces[1:]) * rest
    gaps: list[float] = np.diff(np.interp(np.arange(rest + 1), told, arrivals)).tolist()
    return gaps
