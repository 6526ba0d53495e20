"""What an answer holds: text, stops, usage, log probabilities; streamed or whole, it is the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Gateway, choices, reason_of, text_of

COUNT = {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 24, "temperature": 0}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.conforms("GEN-5")
def test_a_stop_ends_the_answer_before_its_first_character(gateway: Gateway) -> None:
    whole = text_of(gateway.ok("completions", **COUNT))
    for stop in (whole[5:9], [whole[9:12], whole[5:12]], whole[5:8] + "#", whole[-3:] + "#", whole[0:2]):
        texts = [stop] if isinstance(stop, str) else stop
        cut = min((whole.find(text) for text in texts if text in whole), default=len(whole))
        for stream in (False, True):
            answer = gateway.ok("completions", **COUNT, stop=stop, stream=stream)
            assert text_of(answer) == whole[:cut]
            assert reason_of(answer) == ("stop" if cut < len(whole) else "length")


def test_a_stop_saves_tokens_and_counts_them(gateway: Gateway) -> None:
    answer = gateway.ok("completions", **COUNT, stop=" 8", logprobs=1)
    used = answer["usage"]["completion_tokens"]
    assert 0 < used < 24
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == used


@pytest.mark.conforms("GEN-2", "GEN-5")
def test_end_tokens_end_the_answer_unless_ignored(gateway: Gateway) -> None:
    body = {"messages": HELLO, "max_tokens": 60, "temperature": 0}
    ended = gateway.ok("chat/completions", **body)
    assert reason_of(ended) == "stop"
    assert "<|im_end|>" not in text_of(ended)
    ignored = gateway.ok("chat/completions", **body, ignore_eos=True)
    assert reason_of(ignored) == "length"
    assert ignored["usage"]["completion_tokens"] == 60
    assert text_of(ignored).startswith(text_of(ended))


@pytest.mark.conforms("GEN-5")
def test_a_stop_token_id_ends_the_answer_and_is_not_in_it(gateway: Gateway) -> None:
    whole = gateway.ok("completions", **COUNT)
    comma = gateway.ok("completions", **COUNT, stop_token_ids=[28])
    assert reason_of(comma) == "stop"
    assert text_of(comma) == text_of(whole).split(",")[0]


@pytest.mark.conforms("GEN-5")
def test_min_tokens_outlasts_a_stop(gateway: Gateway) -> None:
    answer = gateway.ok("completions", **COUNT, stop=",", min_tokens=10)
    assert answer["usage"]["completion_tokens"] >= 10


@pytest.mark.conforms("GEN-1")
@pytest.mark.parametrize(
    "body",
    [
        COUNT,
        {"prompt": "a", "max_tokens": 8, "temperature": 0, "logit_bias": {"10813": 100}},
        {"prompt": "It 's a cat , is n't it ?", "max_tokens": 24, "temperature": 0},
    ],
    ids=["numbers", "half an emoji", "spaces"],
)
def test_the_joined_stream_equals_the_whole_answer(gateway: Gateway, body: dict[str, Any]) -> None:
    whole = gateway.ok("completions", **body, stream=False)
    stream = gateway.ok("completions", **body, stream=True, stream_options={"include_usage": True})
    assert text_of(stream) == text_of(whole)
    assert reason_of(stream) == reason_of(whole)
    # The second request may find the first one's prompt in the cache.
    for usage in (stream[-1]["usage"], whole["usage"]):
        usage.pop("prompt_tokens_details")
    assert stream[-1]["usage"] == whole["usage"]


def test_half_an_emoji_is_shown_only_when_nothing_can_complete_it(gateway: Gateway) -> None:
    body = {"prompt": "a", "max_tokens": 8, "temperature": 0, "logit_bias": {"10813": 100}}
    answer = gateway.ok("completions", **body)
    assert answer["usage"]["completion_tokens"] == 8
    assert set(text_of(answer)) == {"\N{REPLACEMENT CHARACTER}"}


@pytest.mark.conforms("GEN-3")
def test_usage_comes_last_and_only_when_asked_for(gateway: Gateway) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "temperature": 0, "stream": True}
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        events = gateway.ok("chat/completions", **body, **options)
        assert all(event["choices"] for event in events)
        assert not any("usage" in event for event in events)
    events = gateway.ok("chat/completions", **body, stream_options={"include_usage": True})
    assert [bool(event["choices"]) for event in events] == [True] * (len(events) - 1) + [False]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["usage"]["completion_tokens"] == 5
    error = gateway.post("chat/completions", {**body, "stream": False, "stream_options": {"include_usage": True}})
    assert error[0] == 400 and error[1]["error"]["param"] == "stream_options"


def test_no_chunk_is_empty_but_the_first_and_the_last(gateway: Gateway) -> None:
    events = gateway.ok("chat/completions", messages=HELLO, max_tokens=12, temperature=0, stream=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(delta["content"] for delta in deltas[1:-1])


@pytest.mark.conforms("GEN-7")
@pytest.mark.parametrize("top", [None, 0, 1, 5])
def test_chat_log_probs_have_an_entry_for_each_token(gateway: Gateway, top: int | None) -> None:
    body = {"messages": HELLO, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": top}
    whole = gateway.ok("chat/completions", **body)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text_of(whole)
    for entry in entries:
        candidates = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert len(candidates) == (top or 0)
        assert candidates == sorted(candidates, reverse=True)
        assert entry["logprob"] <= 0
        if candidates:
            # Greedy: the token that was taken is the best candidate.
            assert entry["top_logprobs"][0]["token"] == entry["token"]
    stream = gateway.ok("chat/completions", **body, stream=True)
    streamed = [e for choice in choices(stream) if choice["logprobs"] for e in choice["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


@pytest.mark.conforms("GEN-7")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_completion_log_probs_are_parallel_lists(gateway: Gateway, count: int) -> None:
    whole = gateway.ok("completions", **COUNT, logprobs=count)
    log_probs = whole["choices"][0]["logprobs"]
    assert {len(values) for values in log_probs.values()} == {24}
    assert all(len(candidates or {}) == count for candidates in log_probs["top_logprobs"])
    text = text_of(whole)
    for token, offset in zip(log_probs["tokens"], log_probs["text_offset"], strict=True):
        assert text.startswith(token, offset)
    stream = gateway.ok("completions", **COUNT, logprobs=count, stream=True)
    parts = [choice["logprobs"] for choice in choices(stream) if choice["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [value for part in parts for value in part[name]] == log_probs[name]


def test_too_many_log_probs_are_refused(gateway: Gateway) -> None:
    chat = {"messages": HELLO, "logprobs": True}
    assert gateway.refused("chat/completions", **chat, top_logprobs=21)["param"] == "top_logprobs"
    assert gateway.refused("chat/completions", messages=HELLO, top_logprobs=5)["param"] == "top_logprobs"
    assert gateway.refused("completions", prompt="a", logprobs=6)["param"] == "logprobs"


@pytest.mark.conforms("GEN-3")
def test_a_prompt_seen_before_is_counted_as_cached(gateway: Gateway) -> None:
    body = {"prompt": [7000 + i for i in range(100)], "max_tokens": 1}
    assert gateway.ok("completions", **body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert gateway.ok("completions", **body)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


@pytest.mark.conforms("GEN-3")
@pytest.mark.parametrize("path, asked", [("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "Hi"})])
def test_every_chunk_can_tell_the_usage_so_far(gateway: Gateway, path: str, asked: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = gateway.ok(path, **asked, max_tokens=6, stream=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0] <= 1, counts[-1]) == (True, events[-1]["usage"]["completion_tokens"])
    assert all(event["usage"]["prompt_tokens"] == events[-1]["usage"]["prompt_tokens"] for event in events)
