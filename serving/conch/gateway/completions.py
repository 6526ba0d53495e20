"""POST /v1/completions: `n` choices for each prompt, all of them in flight at once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from conch.gateway.body import read_body
from conch.gateway.ceilings import check_request
from conch.gateway.context import Context, EventStream, total_usage
from conch.gateway.guides import Guide, blamed, guide_of
from conch.gateway.logprobs import TokenLogProb, completion_log_probs, prompt_log_probs
from conch.gateway.protocol import UNDONE_COMPLETION, CompletionRequest
from conch.gateway.sampling import best_of, sampling_for
from conch.gateway.stream import CompletionChunks
from conch.gateway.upstream import Answer, merged


@dataclass
class _Choice:
    """One answer as it has grown."""

    prompt: list[int]
    answer: Answer
    text: str = ""
    log_probs: list[TokenLogProb] = field(default_factory=list)

    @property
    def likelihood(self) -> float:
        """Mean log probability of its tokens."""
        scores = [item.log_prob for item in self.log_probs]
        return sum(scores) / len(scores) if scores else -math.inf


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
        body = await read_body(request, CompletionRequest, UNDONE_COMPLETION, lenient=context.settings.lenient)
        check_request(body, context.settings)
        guide = guide_of(body)
        prompts = [await self._tokens(prompt, body) for prompt in body.prompt]
        words = context.tokenizer.words(body.bad_words) if body.bad_words else ()
        # All limits are checked before the first prompt starts.
        samplings = [sampling_for(body, ids, context.settings, guide=guide, bad_words=words) for ids in prompts]
        decoder = context.decoder_for(body)
        choices = [
            _Choice(ids, answer)
            for ids, sampling in zip(prompts, samplings, strict=True)
            for answer in context.upstream.answers(
                ids, sampling, stops=body.stop, streaming=body.stream, decoder=decoder
            )
        ]
        if body.stream:
            return await EventStream.begin(request, self._events(body, choices, guide), context.lifecycle)
        work = self._whole(body, choices, guide)
        return JSONResponse(await context.lifecycle.while_connected(request.receive, work))

    async def _tokens(self, prompt: str | list[int], body: CompletionRequest) -> list[int]:
        """A text gets what the tokenizer itself adds, such as a start token; ids are taken as they are."""
        if isinstance(prompt, str):
            ids = await self.context.off_loop(len(prompt), self._encode, prompt, body.add_special_tokens)
        else:
            ids = prompt
        return ids[-body.truncate_prompt_tokens :] if body.truncate_prompt_tokens else ids

    def _encode(self, text: str, special: bool) -> list[int]:
        return self.context.tokenizer.encode(text, special=special)

    async def _whole(self, body: CompletionRequest, choices: list[_Choice], guide: Guide | None) -> dict[str, Any]:
        with blamed(guide):
            async for index, piece in merged([choice.answer for choice in choices]):
                choices[index].text += piece.text
                choices[index].log_probs += piece.log_probs
        usage = self._usage(body, choices)
        count = best_of(body)
        groups = [choices[start : start + count] for start in range(0, len(choices), count)]
        shown = []
        for group in groups:
            first = group[0].answer
            best = sorted(group, key=lambda choice: -choice.likelihood) if count > body.n else group
            shown += [self._choice(body, choice, first) for choice in best[: body.n]]
        numbered = [{"index": index, **choice} for index, choice in enumerate(shown)]
        return {**self.context.envelope("cmpl", "text_completion", body), "choices": numbered, "usage": usage}

    def _choice(self, body: CompletionRequest, choice: _Choice, first: Answer) -> dict[str, Any]:
        """`first`: of the answers to the same prompt, the one that knows its log probabilities."""
        text, log_probs = (choice.text, choice.log_probs) if body.max_tokens != 0 else ("", [])
        prompt = first.prompt_log_probs or []
        shown: dict[str, Any] = {
            "text": f"{self._echo(choice)}{text}" if body.echo else text,
            "logprobs": self._log_probs(body, log_probs, 0, choice.prompt if body.echo else None, prompt),
            "finish_reason": choice.answer.finish_reason if body.max_tokens != 0 else "length",
        }
        if body.prompt_logprobs is not None:
            shown["prompt_logprobs"] = prompt_log_probs(prompt, body.prompt_logprobs, self.context.tokenizer)
        return shown

    async def _events(
        self, body: CompletionRequest, choices: list[_Choice], guide: Guide | None
    ) -> AsyncIterator[bytes]:
        envelope = self.context.envelope("cmpl", "text_completion", body)
        chunks = CompletionChunks(envelope, with_usage=body.includes_usage)
        offsets = [0] * len(choices)
        echoes = [body.echo] * len(choices)
        with blamed(guide):
            async for index, piece in merged([choice.answer for choice in choices]):
                choice = choices[index]
                text, scores = (piece.text, piece.log_probs) if body.max_tokens != 0 else ("", [])
                prompt = None
                if echoes[index]:
                    echoes[index], prompt = False, choice.prompt
                    text = f"{self._echo(choice)}{text}"
                if text or scores:
                    first = choices[index - index % body.n].answer
                    log_probs = self._log_probs(body, scores, offsets[index], prompt, first.prompt_log_probs or [])
                    yield chunks.text(index, text, log_probs)
                    offsets[index] += len(text)
                if piece.finish_reason is not None:
                    yield chunks.finish(index, piece.finish_reason if body.max_tokens != 0 else "length")
        if body.includes_usage:
            yield chunks.usage(self._usage(body, choices))

    def _usage(self, body: CompletionRequest, choices: Sequence[_Choice]) -> dict[str, Any]:
        answers = [choice.answer for choice in choices]
        if body.max_tokens == 0:
            for answer in answers:
                answer.completion_tokens = 0
        return total_usage(answers)

    def _echo(self, choice: _Choice) -> str:
        return self.context.tokenizer.decoder.text(choice.prompt)

    def _log_probs(
        self,
        body: CompletionRequest,
        log_probs: list[TokenLogProb],
        offset: int,
        echoed: list[int] | None,
        prompt: list[TokenLogProb],
    ) -> dict[str, Any] | None:
        if body.logprobs is None:
            return None
        first = echoed[0] if echoed else None
        known = [*prompt, *log_probs] if echoed else log_probs
        return completion_log_probs(known, self.context.tokenizer, offset, body.logprobs, first=first)
