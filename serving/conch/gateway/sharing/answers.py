"""Answers given again: to a request of a key that asks again, word for word, what must be answered the same.

That is so at temperature 0 and with a seed. An answer that failed or was cut off is never kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter

from conch.gateway.exchange import Exchange
from conch.gateway.respond import respond_stream, respond_whole
from conch.gateway.sharing.store import Shared
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.plan_sharing import Cache

HEADER = "x-conch-cache"
_SAYS_NOTHING = {"user", "metadata", "service_tier", "priority", "timeout", "safety_identifier", "prompt_cache_key"}
"""Of a body: what the answer does not depend on."""
_ID = re.compile(rb'"id":"((?:chatcmpl|cmpl)-[0-9a-f]{32})"')
_CREATED = re.compile(rb'"created":\d+')
_USAGE = re.compile(rb'("prompt_tokens":(\d+)[^{}]*"prompt_tokens_details":\{"cached_tokens":)\d+')


class Answers:
    """`shared` None: none is kept."""

    def __init__(self, plan: Cache, shared: Shared | None, lifecycle: Lifecycle, registry: CollectorRegistry) -> None:
        self._plan = plan
        self._shared = shared if plan.ttl is not None else None
        self._lifecycle = lifecycle
        asked = Counter("conch:cache_requests", "Requests that the cache was asked for", ["result"], registry=registry)
        self._hits, self._misses = asked.labels("hit"), asked.labels("miss")

    async def respond(
        self,
        exchange: Exchange,
        events: Callable[[], AsyncIterator[bytes]],
        whole: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
    ) -> Response:
        """The response to an exchange, which is made by `events` or `whole` unless it is known."""
        name = self._name(exchange) if self._shared is not None and _always_the_same(exchange) else None
        if name is None or self._shared is None:
            if exchange.streaming:
                return await respond_stream(exchange, self._lifecycle, events())
            return await respond_whole(exchange, self._lifecycle, whole())
        known = await self._shared.ask("GET", name)
        (self._misses if known is None else self._hits).inc()
        if exchange.streaming:
            stream = _again(known, exchange) if known is not None else self._recorded(name, events())
            response = await respond_stream(exchange, self._lifecycle, stream)
        else:
            answer = _whole_again(known, exchange) if known is not None else self._kept(name, whole())
            response = await respond_whole(exchange, self._lifecycle, answer)
        response.headers[HEADER] = "miss" if known is None else "hit"
        return response

    def _name(self, exchange: Exchange) -> str:
        body = exchange.body.model_dump(mode="json", exclude=_SAYS_NOTHING)
        asked = [exchange.owner, exchange.served.edition, exchange.model, exchange.endpoint, body]
        return f"conch:answer:{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()}"

    async def _kept(self, name: str, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        answer = await work
        await self._keep(name, json.dumps(answer).encode())
        return answer

    async def _recorded(self, name: str, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        seen: list[bytes] = []
        size = 0
        try:
            async for event in events:
                size += len(event)
                if size <= self._plan.answer_bytes:
                    seen.append(event)
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        if size <= self._plan.answer_bytes:
            await self._keep(name, b"".join(seen))

    async def _keep(self, name: str, data: bytes) -> None:
        if self._shared is not None and self._plan.ttl is not None and len(data) <= self._plan.answer_bytes:
            await self._shared.ask("SET", name, data, "PX", max(1, round(self._plan.ttl * 1000)))


def _always_the_same(exchange: Exchange) -> bool:
    body = exchange.body
    return body.temperature == 0 or body.seed is not None


async def _whole_again(known: bytes, exchange: Exchange) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(known)
    exchange.answer_id = f"{answer['id'].partition('-')[0]}-{uuid.uuid4().hex}"
    usage = answer["usage"]
    cached = {**usage.get("prompt_tokens_details", {}), "cached_tokens": usage["prompt_tokens"]}
    return {
        **answer,
        "id": exchange.answer_id,
        "created": int(time.time()),
        "usage": {**usage, "prompt_tokens_details": cached},
    }


async def _again(known: bytes, exchange: Exchange) -> AsyncIterator[bytes]:
    """The events of a stream, with an id, a time and a usage of their own. Quotes within texts are escaped, so that
    what is sought is found in envelopes alone."""
    found = _ID.search(known)
    if found is not None:
        exchange.answer_id = f"{found[1].decode().partition('-')[0]}-{uuid.uuid4().hex}"
        known = known.replace(found[1], exchange.answer_id.encode())
    known = _CREATED.sub(b'"created":%d' % time.time(), known)
    yield _USAGE.sub(rb"\g<1>\g<2>", known)
