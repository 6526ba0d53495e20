"""Server-sent events of OpenAI's streams, as bytes. Pure; knows nothing of engines or sockets.

One event is made for every token, so all that does not change between them is rendered once: an event is its
fixed beginning, the text, and its fixed end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring as quoted
from typing import Any

from conch.gateway.answers.parts import CallArguments, CallStart, Content, Part, Reasoning

DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    """One event. JSON text has no line breaks, so it is one line."""
    return f"data: {text}\n\n".encode()


def dumps(value: Any) -> str:
    """Compact JSON. None, which most chunks hold, costs nothing."""
    return "null" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class _Chunks:
    """`envelope` holds what all chunks share: id, object, created, model."""

    def __init__(self, envelope: Mapping[str, Any], *, with_usage: bool) -> None:
        self._head = f'data: {dumps(envelope)[:-1]},"choices":['
        # With usage asked for, every chunk but the last says that it has none.
        self._tail = "]" + (',"usage":null' if with_usage else "") + "}\n\n"

    def tell(self, usage: Mapping[str, Any]) -> None:
        """The chunks from here on have this usage."""
        self._tail = f'],"usage":{dumps(usage)}}}\n\n'

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The last chunk, with no choice in it."""
        return f'{self._head}],"usage":{dumps(usage)}}}\n\n'.encode()


class ChatChunks(_Chunks):
    """Chunks of a chat completion."""

    def role(self, index: int) -> bytes:
        return self._chunk(index, '{"role":"assistant","content":""}', "null", "null")

    def text(self, index: int, text: str, log_probs: Mapping[str, Any] | None) -> bytes:
        return self._chunk(index, f'{{"content":{quoted(text)}}}', dumps(log_probs), "null")

    def part(self, index: int, part: Part) -> bytes:
        """Anything but plain text."""
        return self._chunk(index, dumps(delta_of(part)), "null", "null")

    def finish(self, index: int, reason: str) -> bytes:
        return self._chunk(index, "{}", "null", quoted(reason))

    def _chunk(self, index: int, delta: str, log_probs: str, reason: str) -> bytes:
        return (
            f'{self._head}{{"index":{index},"delta":{delta},"logprobs":{log_probs},"finish_reason":{reason}}}'
            f"{self._tail}"
        ).encode()


class CompletionChunks(_Chunks):
    """Chunks of a text completion."""

    def text(self, index: int, text: str, log_probs: Mapping[str, Any] | None) -> bytes:
        return self._chunk(index, text, dumps(log_probs), "null")

    def finish(self, index: int, reason: str) -> bytes:
        return self._chunk(index, "", "null", quoted(reason))

    def _chunk(self, index: int, text: str, log_probs: str, reason: str) -> bytes:
        return (
            f'{self._head}{{"index":{index},"text":{quoted(text)},"logprobs":{log_probs},"finish_reason":{reason}}}'
            f"{self._tail}"
        ).encode()


def delta_of(part: Part) -> dict[str, Any]:
    """What a part adds to a message."""
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text, "reasoning": text}
        case CallStart(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def usage_of(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    *,
    reasoning_tokens: int = 0,
    draft_tokens: int = 0,
    accepted_tokens: int = 0,
) -> dict[str, Any]:
    """OpenAI's usage object. Tokens that speculation guessed stand where OpenAI has those of a predicted output."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": accepted_tokens,
            "rejected_prediction_tokens": draft_tokens - accepted_tokens,
        },
    }
