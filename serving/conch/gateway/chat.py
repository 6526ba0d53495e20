"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from conch.gateway.body import read_body
from conch.gateway.context import Context, EventStream, total_usage
from conch.gateway.logprobs import TokenLogProb, chat_log_probs
from conch.gateway.protocol import UNDONE_CHAT, ChatRequest
from conch.gateway.sampling import check_request, sampling_for
from conch.gateway.stream import ChatChunks
from conch.gateway.templating import chat_prompt
from conch.gateway.upstream import Answer


class ChatCompletions:
    def __init__(self, context: Context) -> None:
        self.context = context

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/chat/completions", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, request: Request) -> Response:
        """Answer a conversation."""
        context = self.context
        body = await read_body(request, ChatRequest, UNDONE_CHAT)
        check_request(body, context.settings)
        size = sum(len(message.content or "") for message in body.messages)
        prompt = await context.off_loop(size, chat_prompt, body.messages, context.tokenizer)
        sampling = sampling_for(body, prompt, context.settings)
        answer = context.upstream.answer(prompt, sampling, stops=body.stop, streaming=body.stream)
        if body.stream:
            return await EventStream.begin(request, self._events(body, answer), context.lifecycle)
        return JSONResponse(await context.lifecycle.while_connected(request.receive, self._whole(body, answer)))

    async def _whole(self, body: ChatRequest, answer: Answer) -> dict[str, Any]:
        async with answer:
            pieces = [piece async for piece in answer]
        log_probs = [entry for piece in pieces for entry in piece.log_probs]
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces), "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._log_probs(body, log_probs),
            "finish_reason": answer.finish_reason,
        }
        envelope = self.context.envelope("chatcmpl", "chat.completion", body.model)
        return {**envelope, "choices": [choice], "usage": total_usage([answer])}

    async def _events(self, body: ChatRequest, answer: Answer) -> AsyncIterator[bytes]:
        envelope = self.context.envelope("chatcmpl", "chat.completion.chunk", body.model)
        chunks = ChatChunks(envelope, with_usage=body.includes_usage)
        role = chunks.role(0)
        async with answer:
            async for piece in answer:
                if piece.text or piece.log_probs:
                    yield role + chunks.text(0, piece.text, self._log_probs(body, piece.log_probs))
                    role = b""
        assert answer.finish_reason is not None
        yield role + chunks.finish(0, answer.finish_reason)
        if body.includes_usage:
            yield chunks.usage(total_usage([answer]))

    def _log_probs(self, body: ChatRequest, log_probs: list[TokenLogProb]) -> dict[str, Any] | None:
        return chat_log_probs(log_probs, self.context.tokenizer) if body.logprobs else None
