"""A feed: the tokens of all of a client's streams through one gRPC call, one message a step of the engine.

A message costs Triton and both ends a tenth of a millisecond, whatever is in it: with many streams that is more than
the rest of their way together. The call is opened with the first stream and left when there is none.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import replace
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from conch.client.asking import build_feed
from conch.client.errors import from_rpc
from conch.client.generation import Delta
from conch.client.reading import Reader, cut_short, read_feed
from conch_build.errors import ConchError

_LINGER_S = 0.2


class Feed:
    """The streams of one client in one event loop. `infer` opens a gRPC stream."""

    def __init__(self, infer: Any, url: str) -> None:
        self._infer = infer
        self._url = url
        self._name = ""
        self._numbers = itertools.count(1)
        self._streams: dict[int, FedStream] = {}
        self._reading: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def place(self) -> tuple[str, int]:
        """The feed's name, open from now on, and a number for a stream in it."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._reading is None:
            self._name = uuid.uuid4().hex
            call = self._infer(iter((build_feed(self._name),)))
            self._reading = asyncio.ensure_future(self._read(call))
        return self._name, next(self._numbers)

    def add(self, number: int, stream: FedStream) -> None:
        self._streams[number] = stream

    def remove(self, number: int) -> None:
        self._streams.pop(number, None)
        if not self._streams and self._leaving is None:
            self._leaving = asyncio.get_running_loop().call_later(_LINGER_S, self.close)

    def close(self) -> None:
        """Leave the call; the next stream opens another one."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    async def _read(self, call: Any) -> None:
        error: ConchError
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                for number, tokens in read_feed(message):
                    stream = self._streams.get(number)
                    if stream is not None:
                        stream.push(tokens)
            error = cut_short()
        except grpc.RpcError as failure:
            error = from_rpc(failure, self._url)
        except ConchError as failure:
            error = failure
        finally:
            call.cancel()
        self._reading = None
        for stream in list(self._streams.values()):
            stream.fail(error)


class FedStream:
    """An answer as it is made, its tokens from a feed and its end from a call of its own.

    A reader that is slow finds the tokens that have come meanwhile in one delta.
    """

    __slots__ = ("_call", "_ending", "_error", "_feed", "_last", "_number", "_over", "_received", "_tokens", "_waiter")

    def __init__(self, call: Any, url: str, feed: Feed, number: int) -> None:
        self._call = call
        self._feed = feed
        self._number = number
        self._tokens: list[int] = []
        self._received = 0
        self._last: tuple[Delta, int] | None = None
        self._error: ConchError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        feed.add(number, self)
        self._ending = asyncio.ensure_future(self._read_end(url))

    def push(self, tokens: list[int]) -> None:
        """Tokens have come by the feed."""
        self._tokens += tokens
        self._received += len(tokens)
        self._wake()

    def fail(self, error: ConchError) -> None:
        """No more tokens will come."""
        self._error = self._error or error
        self._wake()

    def __aiter__(self) -> FedStream:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        while True:
            if self._last is not None:
                delta, total = self._last
                if self._received + len(delta.tokens) >= total:
                    self._over = True
                    self._feed.remove(self._number)
                    return replace(delta, tokens=(*self._taken(), *delta.tokens))
            if self._tokens:
                return Delta(self._taken())
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def cancel(self) -> None:
        """Stop the request in the engine; does nothing after the end."""
        self._feed.remove(self._number)
        if self._last is None:
            self._call.cancel()

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> FedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _taken(self) -> tuple[int, ...]:
        tokens = tuple(self._tokens)
        self._tokens.clear()
        return tokens

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _read_end(self, url: str) -> None:
        """The call of its own: its last message, and all of them where Triton met it before the feed."""
        reader = Reader()
        try:
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    reader.end()
                    return
                delta = reader.read(message)
                if reader.finished:
                    await self._call.read()
                    self._last = delta, reader.total
                else:
                    self.push(list(delta.tokens))
                self._wake()
        except grpc.RpcError as error:
            self.fail(from_rpc(error, url))
        except ConchError as error:
            self.fail(error)
