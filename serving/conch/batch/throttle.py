"""As many requests at once as a server takes: more while all goes well, half as many when it says that it is too many.

Additive increase, multiplicative decrease (Chiu and Jain, 1989), with doubling until the first refusal. Knows nothing
of HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_START = 8.0


class Throttle:
    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.window = min(_START, float(most))
        self.running = 0
        self._clock = clock
        self._refused_before = False
        self._paused_until = 0.0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and have it inside."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.running < max(1, int(self.window)))
            self.running += 1
        try:
            while (left := self._paused_until - self._clock()) > 0:
                await asyncio.sleep(left)
            yield
        finally:
            async with self._changed:
                self.running -= 1
                self._changed.notify_all()

    def went_well(self) -> None:
        step = 1 / self.window if self._refused_before else 1.0
        self.window = min(float(self.most), self.window + step)

    def refused(self, seconds: float) -> None:
        """The server wants nothing for so long. Refusals of requests that ran together count once."""
        now = self._clock()
        if now >= self._paused_until:
            self.window = max(1.0, self.window / 2)
            self._refused_before = True
        self._paused_until = max(self._paused_until, now + seconds)
