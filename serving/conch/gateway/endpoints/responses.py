"""POST /v1/responses; GET and DELETE /v1/responses/{id}: conversations in OpenAI's newer shape.

Text and function tools. A response is remembered, unless `store` is false, so that the next request may go on from it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response

from conch.gateway import errors
from conch.gateway.answers.logprobs import chat_log_probs
from conch.gateway.answers.message import MessageBuilder
from conch.gateway.answers.parts import Content
from conch.gateway.answers.stream import dumps
from conch.gateway.body import read_body, validated
from conch.gateway.context import Context
from conch.gateway.endpoints.response_output import Event, ResponseOutput
from conch.gateway.endpoints.response_store import ResponseStore, Stored
from conch.gateway.endpoints.turn import Addition, Turn
from conch.gateway.exchange import Exchange, owner_of
from conch.gateway.protocol import ChatRequest
from conch.gateway.protocol.responses import UNDONE_RESPONSES, ResponsesRequest
from conch.gateway.respond import respond_stream, respond_whole
from conch_build.errors import ConchError, RequestError

_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "user", "safety_identifier")
# Parameters of chat completions by their names here.
_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}


class Responses:
    def __init__(self, context: Context) -> None:
        self.context = context
        self._store = ResponseStore(context.settings.stored_responses_bytes)

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/responses", self.create, methods=["POST"], response_model=None)
        router.add_api_route("/v1/responses/{response_id}", self.retrieve, methods=["GET"], response_model=None)
        router.add_api_route("/v1/responses/{response_id}", self.delete, methods=["DELETE"], response_model=None)
        return router

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        context = self.context
        body = await read_body(request, ResponsesRequest, UNDONE_RESPONSES, lenient=context.settings.lenient)
        previous = body.previous_response_id
        owner = owner_of(request)
        earlier = self._store.get(previous, "previous_response_id", owner).messages if previous is not None else []
        with _renamed():
            chat = _chat(body, earlier)
        exchange, chat = context.begin(request, "responses", chat)
        answer = _Answer(body, chat, exchange, self)
        if body.stream:
            return await respond_stream(exchange, context.lifecycle, answer.events(), last=b"", failure=answer.failure)
        return await respond_whole(exchange, context.lifecycle, answer.whole())

    async def retrieve(self, request: Request, response_id: str) -> dict[str, Any]:
        """A response that is remembered."""
        return self._store.get(response_id, "response_id", owner_of(request)).response

    async def delete(self, request: Request, response_id: str) -> dict[str, Any]:
        """Forget a response."""
        self._store.remove(response_id, owner_of(request))
        return {"id": response_id, "object": "response", "deleted": True}

    def keep(self, response: dict[str, Any], messages: list[dict[str, Any]], owner: str) -> None:
        self._store.add(Stored(response, messages, owner))


class _Answer:
    """One response in the making."""

    def __init__(self, body: ResponsesRequest, chat: ChatRequest, exchange: Exchange, owner: Responses) -> None:
        self._body = body
        self._chat = chat
        self._exchange = exchange
        self._owner = owner
        self._output = ResponseOutput()
        self._message = MessageBuilder()
        self._number = 0
        self._usage: dict[str, Any] = {}
        self._response = self._begun()
        exchange.answer_id = self._response["id"]

    async def whole(self) -> dict[str, Any]:
        reason = None
        async for addition in self._additions():
            self._add(addition)
            reason = addition.finish_reason
        self._end(reason)
        return self._response

    async def events(self) -> AsyncIterator[bytes]:
        reason = None
        begun = {**self._response}
        opening = b"".join(
            self._written({"type": f"response.{name}", "response": begun}) for name in ("created", "in_progress")
        )
        async for addition in self._additions():
            yield opening + b"".join(map(self._written, self._add(addition)))
            opening, reason = b"", addition.finish_reason
        ended = self._end(reason)
        yield opening + b"".join(map(self._written, ended))

    def failure(self, error: ConchError) -> bytes:
        """The event that ends a stream that has failed."""
        told = errors.body_of(error)["error"]
        return self._written({"type": "error", **{name: told[name] for name in ("code", "message", "param")}})

    async def _additions(self) -> AsyncIterator[Addition]:
        with _renamed():
            turn = await Turn.begin(self._chat, self._exchange)
            async for addition in turn.additions():
                yield addition
            self._usage = turn.usage()

    def _add(self, addition: Addition) -> list[Event]:
        self._message.add(addition.parts)
        log_probs: list[dict[str, Any]] = []
        if self._body.wants_log_probs:
            tokenizer = self._exchange.served.tokenizer
            log_probs = chat_log_probs(addition.log_probs, tokenizer, self._body.top_logprobs or 0)["content"]
        events = []
        for part in addition.parts:
            events += self._output.add(part, log_probs if isinstance(part, Content) else ())
        return events

    def _end(self, reason: str | None) -> list[Event]:
        status = "incomplete" if reason == "length" else "completed"
        events = self._output.finish(status)
        usage = self._usage
        self._response |= {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output.items,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {
                    "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"],
                },
                "total_tokens": usage["total_tokens"],
            },
        }
        if self._body.store:
            names = ("role", "content", "reasoning_content", "tool_calls")
            said = self._message.message()
            kept = {name: said[name] for name in names if said.get(name)}
            system = 1 if self._body.instructions is not None else 0
            before = [message.model_dump(exclude_none=True) for message in self._chat.messages[system:]]
            self._owner.keep(self._response, [*before, {"content": "", **kept}], self._exchange.owner)
        return [*events, {"type": f"response.{status}", "response": self._response}]

    def _written(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        return f"event: {event['type']}\ndata: {dumps(numbered)}\n\n".encode()

    def _begun(self) -> dict[str, Any]:
        body = self._body
        given = body.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._exchange.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": self._chat.tier,
            "store": body.store,
            "temperature": body.temperature,
            "text": given["text"],
            "tool_choice": _tool_choice(body.tool_choice),
            "tools": given["tools"],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            **{name: getattr(body, name) for name in _ECHOED},
            "metadata": body.metadata or {},
        }


def _chat(body: ResponsesRequest, earlier: list[dict[str, Any]]) -> ChatRequest:
    """Raises RequestError, in the words of this endpoint."""
    try:
        chat = body.chat(earlier)
    except ValueError as error:
        raise RequestError(f"Invalid value for 'input': {error}", param="input", code="invalid_value") from None
    return validated(chat, ChatRequest)


def _tool_choice(given: Any) -> Any:
    if isinstance(given, dict) and "function" in given:
        return {"type": "function", "name": given["function"]["name"]}
    if isinstance(given, dict):
        allowed = given["allowed_tools"]
        tools = [_tool_choice(tool) for tool in allowed["tools"]]
        return {"type": "allowed_tools", "mode": allowed["mode"], "tools": tools}
    return given


@contextmanager
def _renamed() -> Iterator[None]:
    """What is said of chat completions' parameters is said of this endpoint's."""
    try:
        yield
    except RequestError as error:
        param, text = error.param or "", error.what
        for theirs, ours in _NAMES.items():
            if re.match(rf"{theirs}\b", param):
                param, text = param.replace(theirs, ours, 1), text.replace(theirs, ours)
        raise type(error)(text, param=param or None, code=error.code) from None
