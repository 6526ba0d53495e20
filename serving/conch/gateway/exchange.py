"""One API request from its body to its last byte: who asks, for what, and what it came to.

Whoever lets requests in, counts them or tells of them is an `Observer`; an exchange knows none of them by name.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import Request

from conch.client import Sampling
from conch.gateway import stream
from conch.gateway.metrics import Watch
from conch.gateway.protocol import Generation
from conch.gateway.served import Served
from conch.gateway.upstream import Answer
from conch.text import IdDecoder
from conch_build.errors import ConchError


class Observer:
    """What is told of every exchange, in the order of these methods. `ended` always comes, whatever came before."""

    async def admit(self, exchange: Exchange) -> None:
        """The size of the exchange is known, the engine not yet asked. May wait; may refuse by raising ConchError."""

    def started(self, exchange: Exchange) -> None:
        """The engine is asked."""

    def first_token(self, exchange: Exchange) -> None:
        """The first token of its first answer is here."""

    async def ended(self, exchange: Exchange) -> None:
        """All is known; the client has not got the last byte yet."""


class Exchange:
    """Times are of `time.perf_counter`, None as long as they have not come."""

    def __init__(
        self, request: Request, endpoint: str, body: Generation, served: Served, observers: Sequence[Observer]
    ) -> None:
        self.id: str = request.state.request_id
        self.request = request
        self.endpoint = endpoint
        """As `chat.completions`."""
        self.body = body
        self.served = served
        self.model = body.model or served.name
        """As it was asked for: the name of a model or of an adapter."""
        self.streaming = body.stream
        self.began_at = time.perf_counter()
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.prompt_tokens = 0
        """Of all prompts."""
        self.max_tokens = 0
        """What all answers may have together."""
        self.answers: list[Answer] = []
        self.reasoning_tokens = 0
        self.error: ConchError | None = None
        """Why it failed; CancelledError: the client went away."""
        self._observers = observers
        request.state.exchange = self

    async def ask(
        self,
        prompts: Sequence[Sequence[int]],
        samplings: Sequence[Sampling],
        *,
        stops: Sequence[str],
        decoder: IdDecoder,
    ) -> list[list[Answer]]:
        """Start the answers to every prompt, once the exchange is let in. Raises ConchError when it is not."""
        self.prompt_tokens = sum(map(len, prompts))
        self.max_tokens = sum(sampling.max_tokens * sampling.n for sampling in samplings)
        for observer in self._observers:
            await observer.admit(self)
        self.started_at = time.perf_counter()
        for observer in self._observers:
            observer.started(self)
        groups = [
            self.served.upstream.answers(
                prompt, sampling, stops=stops, streaming=self.streaming, watch=self._watch, decoder=decoder
            )
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        self.answers = [answer for group in groups for answer in group]
        return groups

    def envelope(self, prefix: str, kind: str) -> dict[str, Any]:
        """What an answer, and every chunk of it, starts with."""
        envelope = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }
        return {**envelope, "service_tier": self.body.tier} if prefix == "chatcmpl" else envelope

    def usage(self) -> dict[str, Any]:
        """Of all answers together, as far as they have come."""
        return stream.usage_of(
            sum(answer.prompt_tokens for answer in self.answers),
            sum(answer.completion_tokens for answer in self.answers),
            sum(answer.cached_tokens for answer in self.answers),
            reasoning_tokens=self.reasoning_tokens,
            draft_tokens=sum(answer.draft_tokens for answer in self.answers),
            accepted_tokens=sum(answer.accepted_tokens for answer in self.answers),
        )

    async def end(self, error: ConchError | None = None) -> None:
        """Tell the observers, once."""
        if self.ended_at is not None:
            return
        self.ended_at = time.perf_counter()
        self.error = error
        for observer in self._observers:
            await observer.ended(self)

    def _watch(self, prompt_tokens: int) -> Watch:
        return Watch(self.served.metrics, prompt_tokens, streaming=self.streaming, on_first=self._first_token)

    def _first_token(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
            for observer in self._observers:
                observer.first_token(self)
