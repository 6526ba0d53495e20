"""What requests do now, and what became of those of the last minutes. In memory only; knows nothing of HTTP."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conch.gateway.exchange import Exchange, Observer
from conch.gateway.watching.metrics.machine import Host, read_host
from conch_build.errors import CancelledError

EVERY_SECONDS = 2.0
"""Between two points of the history."""
_POINTS = 300
_MOST_FINISHED = 20_000
_WINDOW_SECONDS = 60.0
_NOT_THE_CALLERS = 429
"""Statuses from there on say that the service could not."""


@dataclass(frozen=True)
class Finished:
    """One request that is over. Times in seconds; None: it never came so far."""

    at: float
    """By the recorder's clock."""
    model: str
    """As it was asked for."""
    variant: str
    failed: bool
    """Not by the caller's doing."""
    cancelled: bool
    e2e: float
    ttft: float | None
    itl: float | None
    """Mean from one token to the next."""
    queue: float | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    usd: float | None


@dataclass(frozen=True)
class Point:
    """The state at one time, and the rates since the point before."""

    at: float
    """Seconds since 1970."""
    tokens_per_second: float
    requests_per_second: float
    running: int
    waiting: int
    cpu: float | None
    """Share of the machine's processors that were busy."""


class Arrivals(Observer):
    """Who waits to be let in. It is told before everyone else."""

    def __init__(self) -> None:
        self.waiting: set[Exchange] = set()

    async def admit(self, exchange: Exchange) -> None:
        self.waiting.add(exchange)

    def started(self, exchange: Exchange) -> None:
        self.waiting.discard(exchange)

    async def ended(self, exchange: Exchange) -> None:
        self.waiting.discard(exchange)


class Recorder(Observer):
    """Who runs, and what became of whom. It is told after those that charge."""

    def __init__(self, arrivals: Arrivals, clock: Callable[[], float] = time.perf_counter) -> None:
        self.arrivals = arrivals
        self.running: set[Exchange] = set()
        self.history: deque[Point] = deque(maxlen=_POINTS)
        self.usd = 0.0
        self.priced_tokens = 0
        """Tokens that `usd` was spent on, of prompts and answers."""
        self._clock = clock
        self._finished: deque[Finished] = deque(maxlen=_MOST_FINISHED)
        self._tokens = self._requests = 0
        self._last: tuple[float, int, int, Host | None] = (clock(), 0, 0, read_host())

    def started(self, exchange: Exchange) -> None:
        self.running.add(exchange)

    async def ended(self, exchange: Exchange) -> None:
        self.running.discard(exchange)
        finished = _finished(exchange, self._clock())
        self._finished.append(finished)
        self._tokens += finished.generated_tokens
        self._requests += 1
        if finished.usd is not None:
            self.usd += finished.usd
            self.priced_tokens += finished.prompt_tokens + finished.generated_tokens

    def sample(self) -> None:
        """Add a point to the history."""
        now, host = self._clock(), read_host()
        tokens = self._tokens + sum(_generated(exchange) for exchange in self.running)
        then, tokens_then, requests_then, host_then = self._last
        seconds = max(now - then, 1e-9)
        self._last = (now, tokens, self._requests, host)
        self.history.append(
            Point(
                at=time.time(),
                tokens_per_second=max(0, tokens - tokens_then) / seconds,
                requests_per_second=(self._requests - requests_then) / seconds,
                running=len(self.running),
                waiting=len(self.arrivals.waiting),
                cpu=_busy(host_then, host),
            )
        )

    def recent(self) -> list[Finished]:
        """Those that ended within the last minute."""
        since = self._clock() - _WINDOW_SECONDS
        found: list[Finished] = []
        for finished in reversed(self._finished):
            if finished.at < since:
                break
            found.append(finished)
        return found

    def present(self) -> dict[str, Counter[str]]:
        """How many run and how many wait, by the name of the model that serves them."""
        running = Counter(exchange.served.name for exchange in self.running)
        return {"running": running, "waiting": self.waiting()}

    def waiting(self) -> Counter[str]:
        return Counter(exchange.served.name for exchange in self.arrivals.waiting)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the sorted values that at least that share of them does not exceed; None of no values."""
    if not values:
        return None
    return values[max(0, math.ceil(len(values) * share) - 1)]


def _finished(exchange: Exchange, now: float) -> Finished:
    answers, began, ended = exchange.answers, exchange.began_at, exchange.ended_at or now
    first, generated = exchange.first_token_at, _generated(exchange)
    streamed = exchange.streaming and first is not None
    later = generated - len(answers)
    error = exchange.error
    cancelled = isinstance(error, CancelledError)
    return Finished(
        at=now,
        model=exchange.model,
        variant=exchange.chosen.variant if exchange.chosen else "",
        failed=error is not None and not cancelled and error.http_status >= _NOT_THE_CALLERS,
        cancelled=cancelled,
        e2e=ended - began,
        ttft=first - began if streamed and first is not None else None,
        itl=(ended - first) * len(answers) / later if streamed and first is not None and later > 0 else None,
        queue=exchange.started_at - began if exchange.started_at is not None else None,
        prompt_tokens=exchange.prompt_tokens if answers else 0,
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        generated_tokens=generated,
        usd=exchange.usd,
    )


def _generated(exchange: Exchange) -> int:
    return sum(answer.completion_tokens for answer in exchange.answers)


def _busy(before: Host | None, after: Host | None) -> float | None:
    if before is None or after is None:
        return None
    busy, idle = after.busy_seconds - before.busy_seconds, after.idle_seconds - before.idle_seconds
    return busy / (busy + idle) if busy + idle > 0 else None
