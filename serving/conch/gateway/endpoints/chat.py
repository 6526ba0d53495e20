"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from conch.gateway.answers.logprobs import TokenLogProb, chat_log_probs, prompt_log_probs
from conch.gateway.answers.message import MessageBuilder
from conch.gateway.answers.parts import Content
from conch.gateway.answers.stream import ChatChunks
from conch.gateway.body import read_body
from conch.gateway.context import Context
from conch.gateway.endpoints.turn import Turn
from conch.gateway.exchange import Exchange
from conch.gateway.protocol import UNDONE_CHAT, ChatRequest
from conch.gateway.relay import respond_relayed


class ChatCompletions:
    def __init__(self, context: Context) -> None:
        self.context = context

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/chat/completions", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        lenient = self.context.settings.lenient
        return await self.answer(request, await read_body(request, ChatRequest, UNDONE_CHAT, lenient=lenient))

    async def answer(self, request: Request, body: ChatRequest) -> Response:
        context = self.context
        exchange, body = context.begin(request, "chat.completions", body)
        if exchange.served.relay is not None:
            return await respond_relayed(exchange, context.lifecycle, exchange.served.relay, "/chat/completions")
        return await context.answers.respond(
            exchange, lambda: self._events(body, exchange), lambda: self._whole(body, exchange)
        )

    async def _whole(self, body: ChatRequest, exchange: Exchange) -> dict[str, Any]:
        turn = await Turn.begin(body, exchange)
        messages = [MessageBuilder() for _ in range(body.n)]
        log_probs: list[list[TokenLogProb]] = [[] for _ in range(body.n)]
        reasons: list[str | None] = [None] * body.n
        async for addition in turn.additions():
            messages[addition.index].add(addition.parts)
            log_probs[addition.index] += addition.log_probs
            reasons[addition.index] = addition.finish_reason
        choices = [
            {
                "index": index,
                "message": messages[index].message(),
                "logprobs": _log_probs(body, log_probs[index], exchange),
                "finish_reason": reasons[index],
            }
            for index in range(body.n)
        ]
        whole = {**exchange.envelope("chatcmpl", "chat.completion"), "choices": choices}
        if body.prompt_logprobs is not None:
            known = turn.answers[0].prompt_log_probs or []
            whole["prompt_logprobs"] = prompt_log_probs(known, body.prompt_logprobs, exchange.served.tokenizer)
        return {**whole, "usage": turn.usage()}

    async def _events(self, body: ChatRequest, exchange: Exchange) -> AsyncIterator[bytes]:
        turn = await Turn.begin(body, exchange)
        chunks = ChatChunks(exchange.envelope("chatcmpl", "chat.completion.chunk"), with_usage=body.includes_usage)
        begun = [False] * body.n
        async for addition in turn.additions():
            index, log_probs = addition.index, _log_probs(body, addition.log_probs, exchange)
            if body.tells_usage:
                chunks.tell(turn.usage())
            texts = [part.text for part in addition.parts if isinstance(part, Content)]
            parts = [chunks.part(index, part) for part in addition.parts if not isinstance(part, Content)]
            if texts or addition.log_probs:
                parts.append(chunks.text(index, "".join(texts), log_probs))
            if addition.finish_reason is not None:
                parts.append(chunks.finish(index, addition.finish_reason))
            if parts:
                if not begun[index]:
                    begun[index] = True
                    parts.insert(0, chunks.role(index))
                yield b"".join(parts)
        if body.includes_usage:
            yield chunks.usage(turn.usage())


def _log_probs(body: ChatRequest, log_probs: list[TokenLogProb], exchange: Exchange) -> dict[str, Any] | None:
    return chat_log_probs(log_probs, exchange.served.tokenizer, body.top_logprobs or 0) if body.logprobs else None
