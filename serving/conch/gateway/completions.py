"""POST /v1/completions: one choice for each prompt, all of them in flight at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from conch.gateway.body import read_body
from conch.gateway.context import Context, EventStream, total_usage
from conch.gateway.logprobs import TokenLogProb, completion_log_probs
from conch.gateway.protocol import UNDONE_COMPLETION, CompletionRequest
from conch.gateway.sampling import check_request, sampling_for
from conch.gateway.stream import CompletionChunks
from conch.gateway.upstream import Answer, all_of, merged


class Completions:
    def __init__(self, context: Context) -> None:
        self.context = context

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/completions", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, request: Request) -> Response:
        """Continue texts."""
        context = self.context
        body = await read_body(request, CompletionRequest, UNDONE_COMPLETION)
        check_request(body, context.settings)
        prompts = [await self._tokens(prompt) for prompt in body.prompt]
        # All limits are checked before the first prompt starts.
        samplings = [sampling_for(body, prompt, context.settings) for prompt in prompts]
        answers = [
            context.upstream.answer(prompt, sampling, stops=body.stop, streaming=body.stream)
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        if body.stream:
            return await EventStream.begin(request, self._events(body, answers), context.lifecycle)
        return JSONResponse(await context.lifecycle.while_connected(request.receive, self._whole(body, answers)))

    async def _tokens(self, prompt: str | list[int]) -> list[int]:
        """A text gets what the tokenizer itself adds, such as a start token; ids are taken as they are."""
        if not isinstance(prompt, str):
            return prompt
        return await self.context.off_loop(len(prompt), self._encode, prompt)

    def _encode(self, text: str) -> list[int]:
        return self.context.tokenizer.encode(text, special=True)

    async def _whole(self, body: CompletionRequest, answers: list[Answer]) -> dict[str, Any]:
        choices = await all_of([self._choice(body, index, answer) for index, answer in enumerate(answers)])
        envelope = self.context.envelope("cmpl", "text_completion", body.model)
        return {**envelope, "choices": choices, "usage": total_usage(answers)}

    async def _choice(self, body: CompletionRequest, index: int, answer: Answer) -> dict[str, Any]:
        async with answer:
            pieces = [piece async for piece in answer]
        log_probs = [entry for piece in pieces for entry in piece.log_probs]
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "logprobs": self._log_probs(body, log_probs, 0),
            "finish_reason": answer.finish_reason,
        }

    async def _events(self, body: CompletionRequest, answers: list[Answer]) -> AsyncIterator[bytes]:
        envelope = self.context.envelope("cmpl", "text_completion", body.model)
        chunks = CompletionChunks(envelope, with_usage=body.includes_usage)
        offsets = [0] * len(answers)
        async for index, piece in merged(answers):
            if piece.text or piece.log_probs:
                yield chunks.text(index, piece.text, self._log_probs(body, piece.log_probs, offsets[index]))
                offsets[index] += len(piece.text)
            if piece.finish_reason is not None:
                yield chunks.finish(index, piece.finish_reason)
        if body.includes_usage:
            yield chunks.usage(total_usage(answers))

    def _log_probs(self, body: CompletionRequest, log_probs: list[TokenLogProb], offset: int) -> dict[str, Any] | None:
        if body.logprobs is None:
            return None
        return completion_log_probs(log_probs, self.context.tokenizer, offset)
