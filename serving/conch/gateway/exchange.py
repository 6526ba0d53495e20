"""One API request from its body to its last byte: who asks, for what, and what it came to.

Whoever lets requests in, counts them or tells of them is an `Observer`; an exchange knows none of them by name.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request

from conch.client import Sampling
from conch.gateway.answers import stream
from conch.gateway.protocol import Generation
from conch.gateway.upstream import Answer
from conch.gateway.watching.metrics import Watch
from conch.text import IdDecoder
from conch_build.errors import ConchError

if TYPE_CHECKING:
    from conch.gateway.relay import Relayed
    from conch.gateway.served import Served

log = logging.getLogger("conch.gateway")


@dataclass(frozen=True)
class Chosen:
    """The variant of an experiment that answers."""

    experiment: str
    variant: str
    model: str
    """The model, or adapter, that the variant is."""


class Observer:
    """What is told of every exchange, in the order of these methods. Of one that is begun `ended` always comes."""

    def begun(self, exchange: Exchange) -> None:
        """Its body is read and its model found. May refuse by raising ConchError; must take nothing: no other follows
        then, `ended` included."""

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
        self,
        request: Request,
        endpoint: str,
        body: Generation,
        served: Served,
        observers: Sequence[Observer],
        chosen: Chosen | None = None,
    ) -> None:
        self.id: str = request.state.request_id
        self.request = request
        self.endpoint = endpoint
        """As `chat.completions`."""
        self.body = body
        """`body.model` names what answers."""
        self.served = served
        self.chosen = chosen
        self.model = chosen.experiment if chosen else body.model or served.name
        """As it was asked for: the name of a model, of an adapter or of an experiment."""
        self.owner = owner_of(request)
        self.answer_id = ""
        """The answer's own, as `chatcmpl-...`."""
        self.streaming = body.stream
        self.began_at = time.perf_counter()
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.prompt_tokens = 0
        """Of all prompts."""
        self.max_tokens = 0
        """What all answers may have together."""
        self.choices = 0
        """How many answers are made."""
        self.seconds = math.inf
        """How long it may take, from its body to its last byte."""
        self.answers: list[Answer] | list[Relayed] = []
        self.reasoning_tokens = 0
        self.usd: float | None = None
        """What the time of the engine costs that it took, where the plan tells a price."""
        self.error: ConchError | None = None
        """Why it failed; CancelledError: the client went away."""
        self.metrics = served.metrics.of_variant(f"{chosen.experiment}/{chosen.variant}") if chosen else served.metrics
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
        await self.let_in(
            sum(map(len, prompts)),
            sum(sampling.max_tokens * sampling.n for sampling in samplings),
            sum(sampling.n for sampling in samplings),
        )
        groups = [
            self.served.upstream.answers(
                prompt, sampling, stops=stops, streaming=self.streaming, watch=self.watch, decoder=decoder
            )
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        self.answers = [answer for group in groups for answer in group]
        return groups

    async def let_in(self, prompt_tokens: int, max_tokens: int, choices: int) -> None:
        """Wait for the observers to let it in; the engine is asked from here on. Raises ConchError when they do not."""
        self.prompt_tokens, self.max_tokens, self.choices = prompt_tokens, max_tokens, choices
        for observer in self._observers:
            await observer.admit(self)
        self.started_at = time.perf_counter()
        for observer in self._observers:
            observer.started(self)

    @property
    def latest(self) -> float:
        """When it must be over."""
        return self.began_at + self.seconds

    def envelope(self, prefix: str, kind: str) -> dict[str, Any]:
        """What an answer, and every chunk of it, starts with."""
        self.answer_id = f"{prefix}-{uuid.uuid4().hex}"
        envelope = {
            "id": self.answer_id,
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
        """Tell the observers, once. One that fails takes nothing from the others or the client."""
        if self.ended_at is not None:
            return
        self.ended_at = time.perf_counter()
        self.error = error
        for observer in self._observers:
            try:
                await observer.ended(self)
            except Exception:
                log.exception("request %s: %s failed", self.id, type(observer).__name__)

    def watch(self, prompt_tokens: int) -> Watch:
        """The clock of an answer that counts so many tokens of prompt."""
        return Watch(
            self.metrics,
            prompt_tokens,
            streaming=self.streaming,
            began_at=self.began_at,
            on_first=self._had_first_token,
        )

    def _had_first_token(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
            for observer in self._observers:
                observer.first_token(self)


def owner_of(request: Request) -> str:
    """The id of the API key that asks; empty where there are no keys."""
    key = getattr(request.state, "key", None)
    return key.id if key is not None else ""
