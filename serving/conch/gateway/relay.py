"""A model whose servers speak OpenAI's API themselves: requests are passed on, once they have been checked here.

What a server says of its failures stays in the log. Knows nothing of tokens: it counts what the servers tell.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
from fastapi import Response

from conch.gateway.exchange import Exchange
from conch.gateway.protocol import ChatRequest, CompletionRequest, Generation
from conch.gateway.respond import respond_stream, respond_whole
from conch.gateway.routing.pool import Member, Place, Pool
from conch.gateway.routing.routed import goes_on
from conch.gateway.settings import ModelSettings, OpenAIServer
from conch.gateway.transport.lifecycle import Lifecycle
from conch.gateway.watching.metrics import Watch
from conch_build.errors import (
    ConchError,
    DeadlineError,
    OverloadedError,
    RequestError,
    ServiceError,
    UnavailableError,
)

_EVENT_BYTES = 8 << 20
"""A server whose event is larger than that has failed."""
_CONNECT_S, _PROBE_S = 2.0, 5.0
_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_ID = re.compile(rb'"id"\s*:\s*"((?:[^"\\]|\\.){1,128})"')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|arguments)"\s*:\s*"[^"]')

log = logging.getLogger("conch.gateway")


class OpenAIDoor:
    """One such server."""

    def __init__(self, server: OpenAIServer) -> None:
        self.name = server.url
        self.model = server.model
        headers = {"content-type": "application/json"}
        if server.key:
            headers["authorization"] = f"Bearer {server.key}"
        self.metrics_url = server.metrics_url
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def asked(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer with status 200, still to be read. Raises ConchError for any other, and when reading fails."""
        try:
            async with self._open().post(f"{self.name}{path}", data=body, allow_redirects=False) as response:
                if response.status != 200:
                    raise _refusal(response.status, self.name, await response.content.read(2000))
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
            raise UnavailableError(f"no connection: {error}", where=self.name) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise ServiceError(f"the answer broke off: {error}", where=self.name) from None
        except asyncio.TimeoutError:
            raise DeadlineError("no answer in time", where=self.name) from None

    async def probe(self) -> None:
        """One token, really made. Raises ConchError without it."""
        body = {"model": self.model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}

        async def one_token() -> None:
            async with self.asked("/chat/completions", json.dumps(body).encode()) as response:
                await response.read()

        try:
            await asyncio.wait_for(one_token(), _PROBE_S)
        except asyncio.TimeoutError:
            raise DeadlineError("no sign of life", where=self.name) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
                read_bufsize=1 << 16,
                auto_decompress=True,
                trust_env=False,
            )
        return self._session


class Relayed:
    """The answers to a request, as far as they are counted."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.draft_tokens = self.accepted_tokens = 0
        self.finish_reason: str | None = None
        self.prefill_share: float | None = None

    def count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.completion_tokens = int(usage.get("completion_tokens") or 0)
            self.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class RelayUpstream:
    """The servers of a model, as one."""

    def __init__(self, settings: ModelSettings) -> None:
        self.pool = Pool(OpenAIDoor(server) for server in settings.servers if isinstance(server, OpenAIServer))

    def join(self, server: OpenAIServer) -> None:
        """Ask this one too, from now on."""
        self.pool.join(OpenAIDoor(server))

    async def leave(self, url: str, seconds: float) -> None:
        """As `Pool.leave`."""
        await self.pool.leave(url, seconds)

    async def adapters(self, command: str = "list", lora_task_id: int = 0) -> list[dict[str, Any]]:
        """They keep theirs to themselves."""
        return []

    async def probe(self) -> None:
        """Raises ServiceError, or one of its kinds, without a sign of life from any."""
        await self.pool.probe()

    async def whole(self, exchange: Exchange, path: str) -> dict[str, Any]:
        """The answer, under the name that was asked for. Raises ConchError."""
        await _let_in(exchange)
        asked: set[Member[OpenAIDoor]] = set()
        with _timed(exchange) as watch:
            while True:
                place, relayed = self._ask(exchange, asked)
                try:
                    async with place.door.asked(path, _body(exchange.body, place.door.model)) as response:
                        answer = _read(await response.read(), place.door.name)
                except ConchError as error:
                    if not goes_on(error, place, asked, self.pool, begun=False):
                        raise
                    continue
                finally:
                    place.leave()
                place.served()
                relayed.count(answer.get("usage"))
                relayed.finish_reason = _reason(answer)
                watch.tokens(relayed.completion_tokens)
                exchange.prompt_tokens = relayed.prompt_tokens
                exchange.answer_id = str(answer.get("id", ""))[:64]
                return {**answer, "model": exchange.model}

    async def events(self, exchange: Exchange, path: str) -> AsyncIterator[bytes]:
        """The events of the stream but its end, as they come. Raises ConchError."""
        await _let_in(exchange)
        asked: set[Member[OpenAIDoor]] = set()
        begun = False
        with _timed(exchange) as watch:
            while True:
                place, relayed = self._ask(exchange, asked)
                try:
                    async with place.door.asked(path, _body(exchange.body, place.door.model)) as response:
                        async for events in _events(response):
                            passed = b"".join(self._passed(event, exchange, relayed) for event in events)
                            if texts := sum(1 for event in events if _TEXT.search(event)):
                                place.served()
                                watch.tokens(texts)
                            if passed:
                                begun = True
                                yield passed
                    return
                except ConchError as error:
                    if not goes_on(error, place, asked, self.pool, begun=begun):
                        raise
                finally:
                    place.leave()

    def _ask(self, exchange: Exchange, asked: set[Member[OpenAIDoor]]) -> tuple[Place[OpenAIDoor], Relayed]:
        """A server that was not asked yet."""
        place = self.pool.pick((), exchange.max_tokens, but=asked)
        asked.add(place.member)
        relayed = Relayed(place.door.name)
        exchange.answers = [relayed]
        return place, relayed

    def _passed(self, event: bytes, exchange: Exchange, relayed: Relayed) -> bytes:
        """The event for the client; nothing for one that the client has not asked for."""
        data = event.removeprefix(b"data:").strip()
        if not data.startswith(b"{"):
            return b""  # a comment, or the end
        if not exchange.answer_id and (found := _ID.search(data)):
            exchange.answer_id = found[1].decode(errors="replace")[:64]
        if _USAGE.search(data) or b'"error"' in data or b'"finish_reason":"' in data.replace(b" ", b""):
            told = _read(data, relayed.server)
            if "error" in told:
                raise ServiceError(f"the stream ended with an error: {str(told['error'])[:200]}", where=relayed.server)
            relayed.count(told.get("usage"))
            exchange.prompt_tokens = relayed.prompt_tokens
            relayed.finish_reason = _reason(told) if told.get("choices") else relayed.finish_reason
            if not told.get("choices") and not exchange.body.includes_usage:
                return b""
        name = json.dumps(exchange.model).encode()
        return b"data: " + _MODEL.sub(lambda _: b'"model":' + name, data, count=1) + b"\n\n"


async def respond_relayed(exchange: Exchange, lifecycle: Lifecycle, relay: RelayUpstream, path: str) -> Response:
    """The servers' answer to an exchange, whole or as events."""
    if exchange.streaming:
        return await respond_stream(exchange, lifecycle, relay.events(exchange, path))
    return await respond_whole(exchange, lifecycle, relay.whole(exchange, path))


@contextmanager
def _timed(exchange: Exchange) -> Iterator[Watch]:
    """The clock of an exchange's answer, whichever server makes it in the end."""
    watch, ended = exchange.watch(0), "abort"
    try:
        yield watch
        reason = exchange.answers[0].finish_reason
        ended = "length" if reason == "length" else "stop"
    except ConchError:
        ended = "error"
        raise
    finally:
        watch.prompt_tokens = exchange.prompt_tokens
        watch.end(ended)


async def _let_in(exchange: Exchange) -> None:
    """The prompt's size is known only to the server. Raises ConchError."""
    body = exchange.body
    choices = body.n * (len(body.prompt) if isinstance(body, CompletionRequest) else 1)
    longest = body.max_tokens or (body.max_completion_tokens if isinstance(body, ChatRequest) else None) or 0
    await exchange.let_in(0, longest * choices, choices)


def _body(body: Generation, model: str) -> bytes:
    """What was asked, as OpenAI's clients write it, with the server's own name of the model."""
    given = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    given["model"] = model
    given.pop("service_tier", None)
    given.pop("timeout", None)
    if body.stream:
        given["stream_options"] = {"include_usage": True}
    return json.dumps(given).encode()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    """The events of a stream, those together that came together. Raises ServiceError for one without its end."""
    unread, ended = b"", False
    async for data in response.content.iter_any():
        unread = (unread + data).replace(b"\r\n", b"\n")
        *events, unread = unread.split(b"\n\n")
        if len(unread) > _EVENT_BYTES:
            raise ServiceError("an event is too large", where=str(response.url))
        ended = ended or any(event.removeprefix(b"data:").strip() == b"[DONE]" for event in events)
        if events:
            yield events
    if not ended:
        raise ServiceError("the stream broke off", where=str(response.url))


def _read(data: bytes, where: str) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError:
        raise ServiceError("the answer is no JSON", where=where) from None
    if not isinstance(told, dict):
        raise ServiceError("the answer is no JSON object", where=where)
    return told


def _reason(answer: dict[str, Any]) -> str:
    choices: Sequence[Any] = answer.get("choices") or [{}]
    return str(choices[0].get("finish_reason") or "stop")


def _refusal(status: int, where: str, text: bytes) -> ConchError:
    """What another status than 200 stands for; its words are for the log."""
    said = text.decode(errors="replace")[:500]
    log.warning("%s answered %d: %s", where, status, said)
    if status in (400, 413, 415, 422):
        return RequestError("The model's server refused the request.", code="refused_by_server")
    if status in (401, 403, 404):
        return UnavailableError(f"answered {status}", where=where)
    if status == 429:
        return OverloadedError("is busy", where=where)
    if status == 503:
        return UnavailableError("is not ready", where=where)
    if status == 504:
        return DeadlineError("did not answer in time", where=where)
    return ServiceError(f"answered {status}", where=where)
