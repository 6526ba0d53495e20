"""An event loop in simulated time: nothing waits, the clock leaps to what is due next. Reads no real clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock(asyncio.SelectorEventLoop):
    """`time()` is 0 at first; `call_at`, `sleep` and `wait_for` take no time but on this clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(_Leap(self))

    def time(self) -> float:
        return self.seconds


class _Leap(selectors.SelectSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation waits for what never comes")
        self._clock.seconds += max(timeout, 0.0)
        return []


def simulated(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, run in simulated time from 0 on."""
    clock = Clock()
    try:
        return clock.run_until_complete(work)
    finally:
        clock.close()
