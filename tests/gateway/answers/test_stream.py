"""Server-sent events: every one is a line of JSON that says what a client was promised."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.answers.stream import DONE, ChatChunks, CompletionChunks, event, usage_of

ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": 'a "model"'}


def parse(data: bytes) -> dict[str, Any]:
    lines = data.decode().split("\n")
    assert lines[1:] == ["", ""]
    assert lines[0].startswith("data: ")
    parsed: dict[str, Any] = json.loads(lines[0].removeprefix("data: "))
    return parsed


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_the_framing(text: str) -> None:
    chat = parse(ChatChunks(ENVELOPE, with_usage=False).text(0, text, None))
    assert chat["choices"] == [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
    completion = parse(CompletionChunks(ENVELOPE, with_usage=False).text(3, text, None))
    assert completion["choices"] == [{"index": 3, "text": text, "logprobs": None, "finish_reason": None}]


def test_every_chunk_carries_the_envelope() -> None:
    chunks = ChatChunks(ENVELOPE, with_usage=False)
    for chunk in (chunks.role(0), chunks.text(0, "x", {"content": []}), chunks.finish(0, "stop")):
        parsed = parse(chunk)
        assert parsed.items() >= ENVELOPE.items()
        assert "usage" not in parsed


def test_usage_is_null_until_the_last_chunk_when_asked_for() -> None:
    chunks = CompletionChunks(ENVELOPE, with_usage=True)
    assert parse(chunks.text(0, "x", None))["usage"] is None
    assert parse(chunks.finish(0, "length"))["usage"] is None
    last = parse(chunks.usage(usage_of(3, 4, 2, reasoning_tokens=1, draft_tokens=5, accepted_tokens=2)))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "accepted_prediction_tokens": 2,
            "rejected_prediction_tokens": 3,
        },
    }


def test_the_role_comes_with_empty_content() -> None:
    delta = parse(ChatChunks(ENVELOPE, with_usage=False).role(0))["choices"][0]["delta"]
    assert delta == {"role": "assistant", "content": ""}


def test_the_end_is_a_plain_word() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert event('{"error": 1}') == b'data: {"error": 1}\n\n'
