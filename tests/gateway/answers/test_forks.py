"""Several answers on one stream are read, left and failed like single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from conch.client import Delta
from conch.gateway.answers.forks import forked
from conch_build.errors import ServiceError, UnavailableError


class Source:
    """A stream of given deltas; an error ends it."""

    def __init__(self, *deltas: Delta | ServiceError) -> None:
        self._deltas: Iterator[Delta | ServiceError] = iter(deltas)
        self.cancelled = False

    async def __anext__(self) -> Delta:
        await asyncio.sleep(0)
        item = next(self._deltas, None)
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, ServiceError):
            raise item
        return item

    def cancel(self) -> None:
        self.cancelled = True


async def test_each_gets_its_own() -> None:
    source = Source(*[Delta((index * 10 + step,), index=index) for step in range(3) for index in (1, 0)])
    one, two = forked(source, 2)
    assert [(await two.__anext__()).tokens for _ in range(3)] == [(10,), (11,), (12,)]
    assert [(await one.__anext__()).tokens for _ in range(3)] == [(0,), (1,), (2,)]


async def test_the_stream_is_left_when_all_are() -> None:
    source = Source(Delta((1,), index=0), Delta((2,), index=1))
    one, two = forked(source, 2)
    one.cancel()
    assert (await two.__anext__()).tokens == (2,) and not source.cancelled
    two.cancel()
    assert source.cancelled


async def test_a_failure_reaches_everybody() -> None:
    for fork in forked(Source(Delta((1,), index=0), UnavailableError("down")), 3)[1:]:
        with pytest.raises(UnavailableError):
            await fork.__anext__()


def test_one_answer_needs_no_fork() -> None:
    source = Source()
    assert forked(source, 1) == [source]
