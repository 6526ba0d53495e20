"""Any server with OpenAI's API, asked for streams: which of its events bring tokens, and what its usage tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from conch.bench.traffic.http import Pool
from conch.bench.traffic.record import Ask, Content, Record
from conch.remote import refusal
from conch_build.errors import ConchError, InputError, ServiceError

CHAT = "chat"
COMPLETIONS = "completions"
_PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}


class _Left(Exception):
    """We have read as much as we wanted."""


class Reading:
    """Events of one stream. Only what carries something of the answer is an arrival, not the chunk with the role.

    The chunk that ends an answer counts where there are more tokens than chunks: the last ones may have no text.
    """

    def __init__(self, record: Record, now: Callable[[], float], cancel_after: int | None = None) -> None:
        self.record = record
        self.said: list[str] = []
        self.complete = False
        self._now = now
        self._cancel_after = cancel_after
        self._buffer = b""
        self._finished: float | None = None

    def feed(self, data: bytes) -> None:
        now = self._now()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.complete = True
            elif payload:
                self._event(payload, now)

    def end(self) -> None:
        """The stream is over. Raises ServiceError where it told no usage."""
        record = self.record
        if not self.complete or not record.tokens:
            raise ServiceError("the stream ended without its usage")
        last = record.arrivals[-1] if record.arrivals else 0.0
        if self._finished is not None and self._finished > last and record.tokens > sum(record.pieces):
            record.arrived(self._finished)

    def _event(self, payload: bytes, now: float) -> None:
        try:
            event = json.loads(payload)
            if error := event.get("error"):
                raise ServiceError(f"the stream broke off: {error.get('message', error)}")
            for choice in event.get("choices") or ():
                piece = choice.get("delta") or choice
                text = piece.get("content") or piece.get("text")
                if text or piece.get("reasoning_content") or piece.get("reasoning") or piece.get("tool_calls"):
                    self.said.append(text or "")
                    self.record.arrived(now)
                if choice.get("finish_reason"):
                    self._finished = now
            if usage := event.get("usage"):
                self._usage(usage)
        except (ValueError, AttributeError, TypeError, KeyError):
            raise ServiceError("an event of the stream is not as OpenAI's API has them") from None
        if self._cancel_after is not None and sum(self.record.pieces) >= self._cancel_after:
            raise _Left

    def _usage(self, usage: dict[str, Any]) -> None:
        record = self.record
        record.tokens, record.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        details = usage.get("completion_tokens_details") or {}
        accepted, rejected = details.get("accepted_prediction_tokens"), details.get("rejected_prediction_tokens")
        if accepted is not None and rejected is not None:
            record.accepted_tokens, record.draft_tokens = accepted, accepted + rejected


class OpenAITarget:
    """`url` with or without `/v1`. `key` goes into the header that OpenAI's clients use."""

    def __init__(self, url: str, endpoint: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.endpoint = endpoint
        self._pool = Pool(self.url, {"Authorization": f"Bearer {key}"} if key else {})

    async def send(self, ask: Ask, record: Record, now: Callable[[], float]) -> Content:
        reading = Reading(record, now, ask.cancel_after)
        try:
            status, text = await self._pool.post(_PATHS[self.endpoint], self._body(ask), reading.feed)
            if status != 200:
                raise refusal(status, text, self.url)
            reading.end()
        except _Left:
            record.cancelled = True
            record.tokens = sum(record.pieces)
        except ConchError as error:
            error.where = error.where or self.url
            raise
        return "".join(reading.said)

    async def close(self) -> None:
        await self._pool.close()

    def _body(self, ask: Ask) -> bytes:
        body: dict[str, Any] = {
            "model": ask.model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == CHAT:
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[n % 2], "content": part} for n, part in enumerate(ask.parts)]
        else:
            body["prompt"] = joined(ask.parts)
        return json.dumps(body).encode()


def joined(parts: tuple[Content, ...]) -> str | list[int]:
    """What was said so far as one prompt. Raises InputError where ids and text are mixed."""
    if all(isinstance(part, str) for part in parts):
        return "\n".join(part for part in parts if isinstance(part, str))
    if any(isinstance(part, str) for part in parts):
        raise InputError("answers come as text and prompts as token ids", where="--turns", fix="Leave --tokenizer out.")
    return [token for part in parts for token in part if isinstance(token, int)]
