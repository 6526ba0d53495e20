"""POST /v1/completions: `n` choices for each prompt, all of them in flight at once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response

from conch.gateway.admission.ceilings import check_request
from conch.gateway.answers.logprobs import TokenLogProb, completion_log_probs, prompt_log_probs
from conch.gateway.answers.stream import CompletionChunks
from conch.gateway.body import read_body
from conch.gateway.context import Context
from conch.gateway.exchange import Exchange
from conch.gateway.prompts.guides import Guide, blamed, guide_of
from conch.gateway.prompts.sampling import best_of, sampling_for
from conch.gateway.protocol import UNDONE_COMPLETION, CompletionRequest
from conch.gateway.relay import respond_relayed
from conch.gateway.served import Served
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
        lenient = self.context.settings.lenient
        return await self.answer(
            request, await read_body(request, CompletionRequest, UNDONE_COMPLETION, lenient=lenient)
        )

    async def answer(self, request: Request, body: CompletionRequest) -> Response:
        context = self.context
        exchange, body = context.begin(request, "completions", body)
        if exchange.served.relay is not None:
            return await respond_relayed(exchange, context.lifecycle, exchange.served.relay, "/completions")
        return await context.answers.respond(
            exchange, lambda: self._events(body, exchange), lambda: self._whole(body, exchange)
        )

    async def _begin(self, body: CompletionRequest, exchange: Exchange, guide: Guide | None) -> list[_Choice]:
        """All limits are checked before the first prompt starts. Raises ConchError."""
        served = exchange.served
        check_request(body, served.settings)
        prompts = [await _tokens(prompt, body, served) for prompt in body.prompt]
        words = served.tokenizer.words(body.bad_words) if body.bad_words else ()
        samplings = [sampling_for(body, ids, served.settings, guide=guide, bad_words=words) for ids in prompts]
        with blamed(guide):
            groups = await exchange.ask(prompts, samplings, stops=body.stop, decoder=served.decoder_for(body))
        return [_Choice(ids, answer) for ids, group in zip(prompts, groups, strict=True) for answer in group]

    async def _whole(self, body: CompletionRequest, exchange: Exchange) -> dict[str, Any]:
        guide = guide_of(body)
        choices = await self._begin(body, exchange, guide)
        with blamed(guide):
            async for index, piece in merged([choice.answer for choice in choices]):
                choices[index].text += piece.text
                choices[index].log_probs += piece.log_probs
        usage = _usage(body, exchange)
        count = best_of(body)
        groups = [choices[start : start + count] for start in range(0, len(choices), count)]
        shown = []
        for group in groups:
            first = group[0].answer
            best = sorted(group, key=lambda choice: -choice.likelihood) if count > body.n else group
            shown += [_choice(body, choice, first, exchange.served) for choice in best[: body.n]]
        numbered = [{"index": index, **choice} for index, choice in enumerate(shown)]
        return {**exchange.envelope("cmpl", "text_completion"), "choices": numbered, "usage": usage}

    async def _events(self, body: CompletionRequest, exchange: Exchange) -> AsyncIterator[bytes]:
        guide = guide_of(body)
        choices = await self._begin(body, exchange, guide)
        chunks = CompletionChunks(exchange.envelope("cmpl", "text_completion"), with_usage=body.includes_usage)
        offsets = [0] * len(choices)
        echoes = [body.echo] * len(choices)
        with blamed(guide):
            async for index, piece in merged([choice.answer for choice in choices]):
                choice = choices[index]
                if body.tells_usage:
                    chunks.tell(exchange.usage())
                text, scores = (piece.text, piece.log_probs) if body.max_tokens != 0 else ("", [])
                prompt = None
                if echoes[index]:
                    echoes[index], prompt = False, choice.prompt
                    text = f"{_echo(choice, exchange.served)}{text}"
                if text or scores:
                    first = choices[index - index % body.n].answer
                    log_probs = _log_probs(
                        body, scores, exchange.served, offsets[index], prompt, first.prompt_log_probs or []
                    )
                    yield chunks.text(index, text, log_probs)
                    offsets[index] += len(text)
                if piece.finish_reason is not None:
                    yield chunks.finish(index, piece.finish_reason if body.max_tokens != 0 else "length")
        if body.includes_usage:
            yield chunks.usage(_usage(body, exchange))


async def _tokens(prompt: str | list[int], body: CompletionRequest, served: Served) -> list[int]:
    """A text gets what the tokenizer itself adds, such as a start token; ids are taken as they are."""
    if isinstance(prompt, str):
        ids = await served.off_loop(
            len(prompt), lambda: served.tokenizer.encode(prompt, special=body.add_special_tokens)
        )
    else:
        ids = prompt
    return ids[-body.truncate_prompt_tokens :] if body.truncate_prompt_tokens else ids


def _choice(body: CompletionRequest, choice: _Choice, first: Answer, served: Served) -> dict[str, Any]:
    """`first`: of the answers to the same prompt, the one that knows its log probabilities."""
    text, log_probs = (choice.text, choice.log_probs) if body.max_tokens != 0 else ("", [])
    prompt = first.prompt_log_probs or []
    shown: dict[str, Any] = {
        "text": f"{_echo(choice, served)}{text}" if body.echo else text,
        "logprobs": _log_probs(body, log_probs, served, 0, choice.prompt if body.echo else None, prompt),
        "finish_reason": choice.answer.finish_reason if body.max_tokens != 0 else "length",
    }
    if body.prompt_logprobs is not None:
        shown["prompt_logprobs"] = prompt_log_probs(prompt, body.prompt_logprobs, served.tokenizer)
    return shown


def _usage(body: CompletionRequest, exchange: Exchange) -> dict[str, Any]:
    if body.max_tokens == 0:
        for answer in exchange.answers:
            answer.completion_tokens = 0
    return exchange.usage()


def _echo(choice: _Choice, served: Served) -> str:
    return served.tokenizer.decoder.text(choice.prompt)


def _log_probs(
    body: CompletionRequest,
    log_probs: list[TokenLogProb],
    served: Served,
    offset: int,
    echoed: list[int] | None,
    prompt: list[TokenLogProb],
) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    first = echoed[0] if echoed else None
    known = [*prompt, *log_probs] if echoed else log_probs
    return completion_log_probs(known, served.tokenizer, offset, body.logprobs, first=first)
