"""The closed loop of the contests: so many requests at once, each followed by the next. See `traffic` for any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from conch.bench.figures import Figures, Timing, summarize
from conch.bench.http import CHAT, COMPLETIONS, timed_stream


class Requests(Protocol):
    """Where requests go, and what request `number` asks."""

    @property
    def path(self) -> str: ...

    def body(self, number: int) -> dict[str, object]: ...


@dataclass(frozen=True)
class Workload:
    """A chat. Prompts differ from each other, so that none is served from another's blocks."""

    model: str
    max_tokens: int = 128
    path: ClassVar[str] = CHAT

    def body(self, number: int) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": f"Write a story about number {number} and a dragon."}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


@dataclass(frozen=True)
class Prompts:
    """Completions of given prompts: token ids, so that every server gets the same ones."""

    model: str
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    path: ClassVar[str] = COMPLETIONS

    def body(self, number: int) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": list(self.prompts[number]),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }


async def timed_round(
    url: str, requests: Requests, concurrency: int, count: int, first: int = 0
) -> tuple[float, list[Timing]]:
    """Wall seconds and timings, in the order of their ends, of `count` requests, `concurrency` at any time."""
    numbers = iter(range(first, first + count))
    timings: list[Timing] = []

    async def worker() -> None:
        for number in numbers:
            timings.append(await timed_stream(url, requests.path, requests.body(number)))

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - started, timings


async def run_round(url: str, workload: Workload, concurrency: int, requests: int, first: int = 0) -> Figures:
    """As `timed_round`, summarized; `first` numbers the first prompt."""
    seconds, timings = await timed_round(url, workload, concurrency, requests, first)
    return summarize(concurrency, seconds, timings)
