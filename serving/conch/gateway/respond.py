"""From an exchange to its HTTP response: whole, or as server-sent events; a client that leaves ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from conch.gateway import errors
from conch.gateway.answers import stream
from conch.gateway.exchange import Exchange
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.errors import CancelledError, ConchError, ServiceError


async def respond_whole(
    exchange: Exchange, lifecycle: Lifecycle, work: Coroutine[Any, Any, dict[str, Any]]
) -> Response:
    """The answer in one piece."""
    async with _ending(exchange):
        whole = await lifecycle.while_connected(exchange.request.receive, work, exchange.latest)
    await exchange.end()
    return JSONResponse(whole)


async def respond_stream(
    exchange: Exchange,
    lifecycle: Lifecycle,
    events: AsyncIterator[bytes],
    *,
    last: bytes = stream.DONE,
    failure: Callable[[ConchError], bytes] | None = None,
) -> Response:
    """The answer as events, once the first has come: what fails until then is an ordinary error response.

    `last` ends every stream; `failure` gives the event of an error before that.
    """
    async with _ending(exchange):
        first = await lifecycle.while_connected(exchange.request.receive, _first(events), exchange.latest)
    return _EventStream(exchange, lifecycle, first, events, last, failure or _failure)


_LAST_WORDS_S = 1.0


class _EventStream(Response):
    """Each event is one write."""

    def __init__(
        self,
        exchange: Exchange,
        lifecycle: Lifecycle,
        first: bytes,
        rest: AsyncIterator[bytes],
        last: bytes,
        failure: Callable[[ConchError], bytes],
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._exchange = exchange
        self._lifecycle = lifecycle
        self._first = first
        self._rest = rest
        self._last = last
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def relay() -> None:
            try:
                async for event in self._rest:
                    await write(event)
            finally:
                await self._rest.aclose()  # type: ignore[attr-defined]

        async with _ending(self._exchange):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await write(self._first)
            try:
                await self._lifecycle.while_connected(receive, relay(), self._exchange.latest)
            except CancelledError as gone:
                return await self._exchange.end(gone)
            except ConchError as error:
                await self._exchange.end(error)
                with contextlib.suppress(asyncio.TimeoutError):  # of who reads nothing: the connection ends it
                    await asyncio.wait_for(write(self._failure(error) + self._last, more=False), _LAST_WORDS_S)
                return
            await self._exchange.end()
            await write(self._last, more=False)


@asynccontextmanager
async def _ending(exchange: Exchange) -> AsyncIterator[None]:
    """An exchange whose work fails has ended, whatever failed."""
    try:
        yield
    except BaseException as error:
        await exchange.end(error if isinstance(error, ConchError) else ServiceError("the gateway failed"))
        raise


def _failure(error: ConchError) -> bytes:
    return stream.event(stream.dumps(errors.body_of(error)))


async def _first(events: AsyncIterator[bytes]) -> bytes:
    return await events.__anext__()
