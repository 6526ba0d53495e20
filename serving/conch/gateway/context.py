"""What the endpoints share: one object, made at start and handed to each of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from conch.gateway import errors, stream
from conch.gateway.lifecycle import Lifecycle
from conch.gateway.metrics import Metrics
from conch.gateway.protocol import Generation
from conch.gateway.settings import GatewaySettings
from conch.gateway.tokenizer import Tokenizer
from conch.gateway.upstream import Answer, Upstream
from conch.text import IdDecoder
from conch_build.errors import CancelledError, ConchError

T = TypeVar("T")


@dataclass
class Context:
    settings: GatewaySettings
    tokenizer: Tokenizer
    metrics: Metrics
    lifecycle: Lifecycle
    upstream: Upstream

    async def off_loop(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` at once when its input is small (in characters), else in a thread: streams must flow."""
        if size <= self.settings.limits.inline_chars:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)

    def envelope(self, prefix: str, kind: str, body: Generation) -> dict[str, Any]:
        """What an answer, and every chunk of it, starts with."""
        envelope = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": body.model or self.settings.model_name,
        }
        return {**envelope, "service_tier": body.tier} if prefix == "chatcmpl" else envelope

    def decoder_for(self, body: Generation, *, marking: bool = False) -> IdDecoder:
        """How an answer's ids become text; `marking`: with the marks of calls and of reasoning."""
        if not body.skip_special_tokens:
            return self.tokenizer.whole_decoder
        return self.tokenizer.marking_decoder if marking else self.tokenizer.decoder


def total_usage(answers: Sequence[Answer], reasoning_tokens: int = 0) -> dict[str, Any]:
    """The usage of all choices together."""
    return stream.usage_of(
        sum(answer.prompt_tokens for answer in answers),
        sum(answer.completion_tokens for answer in answers),
        sum(answer.cached_tokens for answer in answers),
        reasoning_tokens=reasoning_tokens,
        draft_tokens=sum(answer.draft_tokens for answer in answers),
        accepted_tokens=sum(answer.accepted_tokens for answer in answers),
    )


class EventStream(Response):
    """Server-sent events to a client that may leave: each event is one write."""

    def __init__(
        self,
        first: bytes,
        rest: AsyncIterator[bytes],
        lifecycle: Lifecycle,
        last: bytes,
        failure: Callable[[ConchError], bytes],
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._lifecycle = lifecycle
        self._last = last
        self._failure = failure

    @classmethod
    async def begin(
        cls,
        request: Request,
        events: AsyncIterator[bytes],
        lifecycle: Lifecycle,
        *,
        last: bytes = stream.DONE,
        failure: Callable[[ConchError], bytes] | None = None,
    ) -> EventStream:
        """Wait for the first event: what fails until then is an ordinary error response.

        `last` ends every stream; `failure` gives the event of an error before that.
        """
        first = await lifecycle.while_connected(request.receive, _first(events))
        return cls(first, events, lifecycle, last, failure or _failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def relay() -> None:
            try:
                async for event in self._rest:
                    await write(event)
            finally:
                await self._rest.aclose()  # type: ignore[attr-defined]

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await write(self._first)
        try:
            await self._lifecycle.while_connected(receive, relay())
        except CancelledError:
            return
        except ConchError as error:
            await write(self._failure(error))
        await write(self._last, more=False)


def _failure(error: ConchError) -> bytes:
    return stream.event(stream.dumps(errors.body_of(error)))


async def _first(events: AsyncIterator[bytes]) -> bytes:
    return await events.__anext__()
