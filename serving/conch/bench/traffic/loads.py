"""When requests are sent: so many at once, or at given times whatever the server does.

At given times a request's latencies count from the time when it should have been sent, so that a server that stalls
is not spared the requests that would have come meanwhile. Knows nothing of what is asked, or of whom.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from conch.bench.traffic.record import Ask, Content, Record
from conch_build.errors import (
    ConchError,
    DeadlineError,
    InputError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)

_KINDS: tuple[tuple[type[ConchError], str], ...] = (
    (OverloadedError, "overloaded"),
    (UnavailableError, "unavailable"),
    (DeadlineError, "timeout"),
    (NotFoundError, "not found"),
    (InputError, "rejected"),
    (ConchError, "failed"),
)


@dataclass(frozen=True)
class Turn:
    content: Content
    max_tokens: int
    cancel_after: int | None = None


@dataclass(frozen=True)
class Session:
    """A talk of one or more turns; each turn holds all that was said before."""

    number: int
    model: str
    turns: tuple[Turn, ...]


class Target(Protocol):
    """A server."""

    async def send(self, ask: Ask, record: Record, now: Callable[[], float]) -> Content:
        """Fill in `record` as the answer comes, and return it. Raises a ConchError."""

    async def close(self) -> None: ...


class Generator:
    """Plays sessions against a target and keeps every record; `on_record` is told of each."""

    def __init__(
        self,
        target: Target,
        *,
        timeout: float = 600.0,
        think: float = 0.0,
        on_record: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.target = target
        self.timeout = timeout
        self.think = think
        self.on_record = on_record

    async def closed(
        self, sessions: Iterator[Session], concurrency: int, duration: float | None = None
    ) -> list[Record]:
        """`concurrency` sessions at any time, each followed by the next, until they are all played or time is up."""
        self._begin()

        async def worker() -> None:
            while duration is None or self.now() < duration:
                session = next(sessions, None)
                if session is None:
                    return
                await self._play(session, self.now())

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return self.records

    async def opened(self, sessions: Iterator[Session], starts: Sequence[float]) -> list[Record]:
        """A session at each of `starts`, in seconds."""
        self._begin()
        playing = []
        for start in starts:
            session = next(sessions)
            if (wait := start - self.now()) > 0:
                await asyncio.sleep(wait)
            playing.append(asyncio.create_task(self._play(session, start)))
        await asyncio.gather(*playing)
        return self.records

    def now(self) -> float:
        return time.perf_counter() - self._began

    def _begin(self) -> None:
        self.records: list[Record] = []
        self._began = time.perf_counter()

    async def _play(self, session: Session, due: float) -> None:
        parts: tuple[Content, ...] = ()
        for number, turn in enumerate(session.turns):
            parts = (*parts, turn.content)
            record = Record(session.number, session.model, due, number)
            ask = Ask(session.model, parts, turn.max_tokens, turn.cancel_after)
            answer = await self._send(ask, record)
            self.records.append(record)
            self.on_record(record)
            if record.error or record.cancelled:
                return
            if number + 1 < len(session.turns):
                parts = (*parts, answer)
                if self.think:
                    await asyncio.sleep(self.think)
                due = record.ended + self.think

    async def _send(self, ask: Ask, record: Record) -> Content:
        record.sent = self.now()
        answer: Content = ""
        try:
            answer = await asyncio.wait_for(self.target.send(ask, record, self.now), self.timeout)
        except asyncio.TimeoutError:
            record.error, record.message = "timeout", f"no whole answer within {self.timeout:g} s"
        except ConchError as error:
            record.error = next(kind for cls, kind in _KINDS if isinstance(error, cls))
            record.message = error.message
        record.ended = self.now()
        return answer


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """`count` times of arrivals that know nothing of each other, `rate` a second on average, the first at 0."""
    chance = random.Random(seed)
    starts = [0.0]
    while len(starts) < count:
        starts.append(starts[-1] + chance.expovariate(rate))
    return starts[:count]
