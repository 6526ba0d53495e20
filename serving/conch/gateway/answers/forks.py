"""Several answers that come on one stream, taken apart: each is then read and left like one that came alone.

The engine computes their prompt once. It gives up a request as a whole only, so an answer that is left early is made
to its end as long as somebody reads another one. Knows nothing of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from conch.client import Delta
from conch_build.errors import ConchError


class Stream(Protocol):
    """What `AsyncStream` and `FedStream` of the client have in common."""

    async def __anext__(self) -> Delta: ...

    def cancel(self) -> None: ...


class Fork:
    """One of the answers."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._deltas: asyncio.Queue[Delta | ConchError] = asyncio.Queue()
        self.left = False

    def push(self, item: Delta | ConchError) -> None:
        if not self.left:
            self._deltas.put_nowait(item)

    async def __anext__(self) -> Delta:
        item = await self._deltas.get()
        if isinstance(item, ConchError):
            raise item
        return item

    def cancel(self) -> None:
        """Read no more of it."""
        self.left = True
        self._source.leave()


class _Source:
    """The stream, read by a task of its own: who reads one answer slowly must not delay the others."""

    def __init__(self, stream: Stream, count: int) -> None:
        self._stream = stream
        self.forks = [Fork(self) for _ in range(count)]
        self._reading = asyncio.ensure_future(self._read())

    def leave(self) -> None:
        if all(fork.left for fork in self.forks):
            self._reading.cancel()
            self._stream.cancel()

    async def _read(self) -> None:
        try:
            async for delta in _deltas(self._stream):
                self.forks[delta.index].push(delta)
        except ConchError as error:
            for fork in self.forks:
                fork.push(error)


def forked(stream: Stream, count: int) -> Sequence[Stream]:
    """The `count` answers of a stream."""
    return [stream] if count == 1 else _Source(stream, count).forks


async def _deltas(stream: Stream) -> AsyncIterator[Delta]:
    while True:
        try:
            yield await stream.__anext__()
        except StopAsyncIteration:
            return
