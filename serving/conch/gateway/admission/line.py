"""The line before an engine: who may go in now, who waits, who is sent away. Knows nothing of HTTP.

Higher ranks go first. Within a rank each caller gets the same share of tokens (start-time fair queueing: Goyal, Vin and
Cheng, 1996), so one caller's requests keep their order and no caller's many delay another's few. Nobody passes the one
in front, so big requests are not starved by small ones.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from conch.gateway.admission.pace import Pace
from conch.gateway.errors import QueueFull, TooLate
from conch_build.errors import ConchError


@dataclass(frozen=True)
class Bounds:
    running: int
    """Answers that are made at once."""
    running_tokens: float
    """Tokens of them and of their prompts."""
    waiting: int
    """Requests."""
    waiting_tokens: float


@dataclass(frozen=True)
class Wish:
    """What a request would take."""

    answers: int
    tokens: int
    rank: int = 0
    caller: Hashable = None
    latest: float = math.inf
    """When the caller gives up, by `time.perf_counter`."""


@dataclass(order=True)
class _Waiting:
    order: tuple[int, float, int]
    wish: Wish = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Line:
    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.perf_counter) -> None:
        self.bounds = bounds
        self.running = 0
        self.running_tokens = 0
        self.waiting_tokens = 0
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._pace = Pace()
        self._numbers = itertools.count()
        self._virtual = 0.0
        self._finish: dict[Hashable, float] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def enter(self, wish: Wish) -> None:
        """Return when it is the request's turn, which lasts until `leave`. Raises QueueFull, TooLate, or
        what `clear` is given."""
        if not self._waiting and self._fits(wish):
            return self._begin(wish)
        mine = _Waiting(self._order(wish), wish, asyncio.get_running_loop().create_future())
        self._make_room(mine)
        self._finish[wish.caller] = mine.order[1] + wish.tokens
        heapq.heappush(self._waiting, mine)
        self.waiting_tokens += wish.tokens
        self._pace.begin(self._clock())
        self._advance()
        try:
            await mine.turn
        except asyncio.CancelledError:
            if mine.turn.cancelled():
                self._remove(mine)
                self._advance()
            elif mine.turn.exception() is None:
                self.leave(wish)  # its turn came as its caller left
            raise

    def leave(self, wish: Wish) -> None:
        """The request has ended."""
        self.running -= wish.answers
        self.running_tokens -= wish.tokens
        self._pace.left(wish.tokens, self._clock())
        self._advance()

    def rebound(self, bounds: Bounds) -> None:
        """Let in as many as that from now on; who is in or waits stays."""
        self.bounds = bounds
        self._advance()

    def clear(self, error: ConchError) -> None:
        """Send all away who wait."""
        for waiting in list(self._waiting):
            self._send_away(waiting, error)

    def _order(self, wish: Wish) -> tuple[int, float, int]:
        start = max(self._virtual, self._finish.get(wish.caller, 0.0))
        return -wish.rank, start, next(self._numbers)

    def _make_room(self, mine: _Waiting) -> None:
        """Whoever is of a lower rank makes room. Raises QueueFull where there is none, TooLate where it is no use."""
        ahead = sum(other.wish.tokens for other in self._waiting if other < mine)
        seconds = self._pace.seconds_for(ahead)
        if seconds is not None and self._clock() + seconds > mine.wish.latest:
            raise TooLate(seconds)
        while self._is_full(mine.wish):
            full = QueueFull(self._pace.seconds_for(self.waiting_tokens / 2))
            last = max(self._waiting, default=mine)
            if last.wish.rank >= mine.wish.rank:
                raise full
            self._send_away(last, full)

    def _is_full(self, wish: Wish) -> bool:
        return self.waiting >= self.bounds.waiting or self.waiting_tokens + wish.tokens > self.bounds.waiting_tokens

    def _fits(self, wish: Wish) -> bool:
        """What is more than all that there is goes alone."""
        return not self.running or (
            self.running + wish.answers <= self.bounds.running
            and self.running_tokens + wish.tokens <= self.bounds.running_tokens
        )

    def _begin(self, wish: Wish) -> None:
        self.running += wish.answers
        self.running_tokens += wish.tokens

    def _advance(self) -> None:
        while self._waiting and (self._waiting[0].turn.cancelled() or self._fits(self._waiting[0].wish)):
            first = heapq.heappop(self._waiting)
            self.waiting_tokens -= first.wish.tokens
            if first.turn.cancelled():  # its caller has left, and is about to say so
                continue
            self._virtual = max(self._virtual, first.order[1])
            self._begin(first.wish)
            first.turn.set_result(None)
        if not self._waiting:
            self._pace.pause()
            self._virtual = 0.0
            self._finish.clear()

    def _send_away(self, waiting: _Waiting, error: ConchError) -> None:
        self._remove(waiting)
        if not waiting.turn.done():
            waiting.turn.set_exception(error)

    def _remove(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            heapq.heapify(self._waiting)
            self.waiting_tokens -= waiting.wish.tokens
