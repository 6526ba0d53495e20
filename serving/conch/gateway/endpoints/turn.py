"""A conversation on its way to answers: the prompt, what the answers must be, and how they will be read.

Shared by the endpoints that answer conversations; knows nothing of the shapes in which they do.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conch.gateway.admission.ceilings import check_request
from conch.gateway.answers.logprobs import TokenLogProb
from conch.gateway.answers.parts import Content, Part
from conch.gateway.answers.reasoning import ReasoningReader
from conch.gateway.answers.replies import ReplyReader
from conch.gateway.calls import enforce
from conch.gateway.calls.reader import CallReader
from conch.gateway.exchange import Exchange
from conch.gateway.prompts.dialect import Dialect
from conch.gateway.prompts.guides import Guide, blamed, guide_of, tagged
from conch.gateway.prompts.sampling import sampling_for
from conch.gateway.prompts.templating import Prompt, chat_prompt
from conch.gateway.protocol import ChatRequest, Tool
from conch.gateway.upstream import Answer, merged
from conch_build.errors import RequestError


@dataclass(frozen=True)
class Addition:
    """What one of the answers has grown by."""

    index: int
    parts: list[Part]
    log_probs: list[TokenLogProb]
    finish_reason: str | None


class Turn:
    """The answers to a conversation, in the making."""

    def __init__(
        self, exchange: Exchange, answers: list[Answer], readers: list[ReplyReader | None], guide: Guide | None
    ) -> None:
        self.answers = answers
        self._exchange = exchange
        self._readers = readers
        self._guide = guide

    @classmethod
    async def begin(cls, body: ChatRequest, exchange: Exchange) -> Turn:
        """Raises RequestError for what can be told before the engine is asked, ConchError when it may not be asked."""
        served = exchange.served
        check_request(body, served.settings)
        dialect = served.tokenizer.dialect
        tools = _callable(body)
        guide = _guide(body, tools, dialect)
        size = sum(len(message.content or "") for message in body.messages)
        size += sum(len(json.dumps(tool.function.parameters)) for tool in tools)
        prompt: Prompt = await served.off_loop(
            size, lambda: chat_prompt(body, tools, served.tokenizer, dialect, reasoning=guide is None)
        )
        ids = prompt.ids[-body.truncate_prompt_tokens :] if body.truncate_prompt_tokens else prompt.ids
        words = served.tokenizer.words(body.bad_words) if body.bad_words else ()
        sampling = sampling_for(body, ids, served.settings, guide=guide, bad_words=words)
        readers = [_reader(body, tools, prompt, dialect, guided=guide is not None) for _ in range(body.n)]
        decoder = served.decoder_for(body, marking=readers[0] is not None)
        with blamed(guide):
            (answers,) = await exchange.ask([ids], [sampling], stops=body.stop, decoder=decoder)
        return cls(exchange, answers, readers, guide)

    async def additions(self) -> AsyncIterator[Addition]:
        """All that comes, of every answer. Raises RequestError when the engine refuses what the answers must be."""
        with self.blaming():
            ended = [False] * len(self.answers)
            async for index, piece in merged(self.answers):
                if ended[index]:
                    continue
                answer, reader, reason = self.answers[index], self._readers[index], piece.finish_reason
                if reader is None:
                    parts: list[Part] = [Content(piece.text)] if piece.text else []
                else:
                    parts = reader.push(piece.text, answer.completion_tokens, last=reason is not None)
                    if reader.done and reason is None:
                        reason = answer.finish_reason = "stop"
                    reason = reason and reader.finish_reason(reason)
                ended[index] = reason is not None
                yield Addition(index, parts, piece.log_probs, reason)

    def usage(self) -> dict[str, Any]:
        """Of all answers, at their end."""
        self._exchange.reasoning_tokens = sum(reader.reasoning_tokens for reader in self._readers if reader)
        return self._exchange.usage()

    @contextmanager
    def blaming(self) -> Iterator[None]:
        with blamed(self._guide):
            yield


def _callable(body: ChatRequest) -> list[Tool]:
    """The tools that the model is told of."""
    choice = body.tool_choice
    if choice.mode == "none":
        return []
    return [tool for tool in body.tools if choice.names is None or tool.function.name in choice.names]


def _guide(body: ChatRequest, tools: list[Tool], dialect: Dialect) -> Guide | None:
    """What every answer must be; calls of tools are part of it."""
    asked = guide_of(body)
    if not tools:
        return asked
    choice, markup = body.tool_choice, dialect.markup
    if asked is not None and asked.kind != "json_schema":
        text = f"'{asked.param}' cannot be combined with 'tools': only schemas can"
        raise RequestError(text, param=asked.param, code="invalid_value")
    calls = enforce.calls(markup, tools, single=_is_single(body, dialect))
    if choice.mode == "required":
        return tagged(calls, "tools")
    if asked is not None:
        return tagged({"type": "or", "elements": [asked.format, calls]}, asked.param)
    if any(tool.function.strict for tool in tools):
        return tagged(enforce.text_or_calls(markup, tools, single=_is_single(body, dialect)), "tools")
    return None


def _is_single(body: ChatRequest, dialect: Dialect) -> bool:
    """Whether an answer has one call at most.

    A model that must call, and was never taught to, would not know where to stop: several are for those who ask.
    """
    choice = body.tool_choice
    untaught = choice.mode == "required" and not dialect.shows_tools
    return choice.single or not body.parallel_tool_calls or (untaught and not body.wants_parallel_calls)


def _reader(
    body: ChatRequest, tools: list[Tool], prompt: Prompt, dialect: Dialect, *, guided: bool
) -> ReplyReader | None:
    """None: the answer is text and nothing else."""
    marks = None if guided else dialect.marks
    if not tools and marks is None:
        return None
    calls = CallReader(
        dialect.markup,
        {tool.function.name for tool in tools},
        single=_is_single(body, dialect),
        forced=body.tool_choice.mode == "required",
    )
    reasoning = ReasoningReader(marks, begun=prompt.reasons) if marks else None
    return ReplyReader(reasoning, calls if tools else None)
