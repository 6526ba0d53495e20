"""Where a server is saturated: the load doubled until it brings no more. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Measure = Callable[[float], Awaitable[dict[str, Any]]]

GAIN = 1.05
"""A doubled load that brings less than this factor of tokens/s is past saturation."""
KEPT = 0.95
"""Of the offered requests/s that a server must answer to hold a rate."""
_HALVINGS = 3


async def ramp_concurrency(measure: Measure, most: int = 1024) -> int:
    """Requests at once from which more bring no more tokens/s. `measure` is called with 1, 2, 4, ..."""
    level, rate = 1, (await measure(1))["tokens_per_second"]
    while level * 2 <= most:
        row = await measure(level * 2)
        if row["errors"] or row["tokens_per_second"] < GAIN * rate:
            break
        level, rate = level * 2, row["tokens_per_second"]
    return level


async def ramp_rate(measure: Measure, start: float, most: float = 1e5) -> float:
    """The highest requests/s that are kept up with: doubled from `start` until they are not, then narrowed down.

    0 where not even `start` is.
    """
    held, offered, missed = 0.0, start, None
    while offered <= most and missed is None:
        if await _holds(measure, offered):
            held, offered = offered, offered * 2
        else:
            missed = offered
    for _ in range(_HALVINGS if missed and held else 0):
        assert missed is not None
        middle = (held + missed) / 2
        if await _holds(measure, middle):
            held = middle
        else:
            missed = middle
    return held


async def _holds(measure: Measure, offered: float) -> bool:
    """Errors, a missed SLO, or answers that fall behind: it does not."""
    row = await measure(offered)
    if row["errors"] or row["slo_met"] is False:
        return False
    return bool(row["kept_share"] >= KEPT)
