"""Bodies: what is not done is refused by name, null is absent, errors say which field is wrong and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch.gateway.admission.ceilings import check_request
from conch.gateway.body import parse_body
from conch.gateway.prompts.sampling import sampling_for
from conch.gateway.protocol import UNDONE_CHAT, UNDONE_COMPLETION, ChatRequest, CompletionRequest
from conch.gateway.settings import Limits, ModelSettings
from conch_build.errors import RequestError, UnsupportedError

SETTINGS = ModelSettings(
    name="tiny",
    servers=(),
    tokenizer=Path("tokenizer"),
    max_seq_len=100,
    vocab_size=1000,
    end_ids=(2,),
    top_candidates=10,
    limits=Limits(messages=3, stops=2, stop_chars=5, prompts=2),
)
HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> ChatRequest:
    raw = json.dumps({"messages": HELLO, **fields}).encode()
    body = parse_body(raw, ChatRequest, UNDONE_CHAT)
    check_request(body, SETTINGS)
    return body


def completion(**fields: Any) -> CompletionRequest:
    body = parse_body(json.dumps({"prompt": "hello", **fields}).encode(), CompletionRequest, UNDONE_COMPLETION)
    check_request(body, SETTINGS)
    return body


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    return caught.value


@pytest.mark.conforms("REQ-2")
@pytest.mark.parametrize("name", [name for name in ChatRequest.model_fields if name != "messages"])
def test_null_is_the_same_as_absent(name: str) -> None:
    assert chat(**{name: None}) == chat()


@pytest.mark.parametrize("name", UNDONE_CHAT)
def test_null_is_absent_for_what_is_not_done_too(name: str) -> None:
    assert chat(**{name: None}) == chat()


@pytest.mark.conforms("REQ-3")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 3),
        ("store", True),
        ("functions", [{"name": "f"}]),
        ("audio", {}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("use_beam_search", True),
        ("guided_whitespace_pattern", " "),
    ],
)
def test_what_is_not_done_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert isinstance(error, UnsupportedError)
    assert error.param == name
    assert f"'{name}'" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 1), ("tools", []), ("tool_choice", "auto"), ("store", False), ("modalities", ["text"]), ("functions", [])],
)
def test_what_asks_for_nothing_is_accepted(name: str, value: Any) -> None:
    assert chat(**{name: value}) == chat()


@pytest.mark.conforms("REQ-3")
def test_an_unknown_parameter_is_named() -> None:
    error = refused(temprature=1)
    assert (error.param, error.code) == ("temprature", "unknown_parameter")
    assert refused(stream=True, stream_options={"usage": True}).param == "stream_options.usage"


@pytest.mark.conforms("REQ-4")
@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("temperature", 999999, "at most 2"),
        ("temperature", -1, "at least 0"),
        ("top_p", 0, "greater than 0"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", -5, "at least -1"),
        ("min_p", 2, "at most 1"),
        ("repetition_penalty", 0, "at least 0.01"),
        ("repetition_penalty", 1e-40, "at least 0.01"),
        ("presence_penalty", 3, "at most 2"),
        ("seed", 2**63, str(2**63 - 1)),
        ("top_logprobs", 21, "at most 20"),
        ("max_tokens", 0, "at least 1"),
    ],
)
def test_out_of_range_names_the_field_and_its_range(name: str, value: Any, bound: str) -> None:
    error = refused(**{name: value, "logprobs": True})
    assert error.param == name
    assert bound in error.message


@pytest.mark.parametrize("raw", [b"", b"[]", b'"x"', b'{"mess', b'{"a": NaN}', b'{"a": -Infinity}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_body(raw, ChatRequest, UNDONE_CHAT)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("text", [r"\ud83d", r"a\uDE00b", r"\ude00\ud83d"])
def test_half_a_surrogate_pair_is_no_text(text: str) -> None:
    for raw in (f'{{"prompt": "{text}"}}', f'{{"{text}": 1, "prompt": "x"}}', f'{{"prompt": "x", "stop": ["{text}"]}}'):
        with pytest.raises(RequestError) as caught:
            parse_body(raw.encode(), CompletionRequest, UNDONE_COMPLETION)
        assert caught.value.code == "invalid_json"
    assert parse_body(rb'{"prompt": "\ud83d\ude00"}', CompletionRequest, UNDONE_COMPLETION).prompt == ["\U0001f600"]


def test_text_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "Say hi"


@pytest.mark.conforms("GEN-12")
@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        [{"type": "text"}],
        [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
        ["hi"],
        7,
    ],
)
def test_other_content_is_refused(content: Any) -> None:
    error = refused(messages=[{"role": "user", "content": content}])
    assert (error.param or "").startswith("messages[0]")


@pytest.mark.parametrize("arguments", ['{"text": "unfinished', "", "null", "[1]", '"x"', {"text": "done"}])
def test_a_tool_call_in_the_history_may_be_broken(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": arguments}}
    turns = [
        {"role": "user", "content": "note it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "not run"},
    ]
    assert len(chat(messages=turns).messages) == 3


@pytest.mark.conforms("REQ-3")
def test_what_is_not_known_may_be_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    raw = json.dumps({"messages": HELLO, "temprature": 1, "audio": {}, "seed": 3}).encode()
    body = parse_body(raw, ChatRequest, UNDONE_CHAT, lenient=True)
    assert body == chat(seed=3)
    assert "audio, temprature" in caplog.text


@pytest.mark.conforms("GEN-11")
def test_who_goes_first_is_the_tier_then_the_priority() -> None:
    ways: list[dict[str, Any]] = [
        {"service_tier": "fast", "priority": 1000},
        {"priority": -5},
        {},
        {"service_tier": "default", "priority": 5},
        {"service_tier": "flex", "priority": -1000},
    ]
    order = [sampling_for(chat(**way), [1], SETTINGS).priority or 0 for way in ways]
    assert order == sorted(order, reverse=True) and len(set(order)) == 5


def test_roles_are_openais() -> None:
    assert chat(messages=[{"role": "developer", "content": "be brief"}])
    assert refused(messages=[{"role": "wizard", "content": "x"}]).param == "messages[0].role"


@pytest.mark.conforms("REQ-9")
@pytest.mark.parametrize("messages", [[], {}, "x", HELLO * 4])
def test_messages_are_a_list_of_bounded_length(messages: Any) -> None:
    assert refused(messages=messages).param == "messages"


@pytest.mark.conforms("REQ-9")
@pytest.mark.parametrize("stop", [7, "", [""], ["a", "b", "c"], "longer than five"])
def test_stops_are_few_short_texts(stop: Any) -> None:
    assert refused(stop=stop).param == "stop"


@pytest.mark.parametrize(
    "bias", [{"1000": 5}, {"-1": 5}, {"abc": 5}, {"17": 1e9}, {"17": None}, {"17": "5"}, {"17": 10**400}]
)
def test_a_bad_bias_names_its_key_and_the_vocabulary(bias: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        sampling_for(chat(logit_bias=bias), [1], SETTINGS)
    assert caught.value.param == "logit_bias"
    assert next(iter(bias)) in caught.value.message
    assert "1000" in caught.value.message


def test_biases_reach_the_engine() -> None:
    sampling = sampling_for(chat(logit_bias={"17": 100, "3": -100}), [1], SETTINGS)
    assert sampling.logit_bias == {17: 100.0, 3: -100.0}


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""], [[1], []], [], None, 7, [1, "a"], [True], {"a": 1}])
def test_every_prompt_has_something_in_it(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_the_empty_prompt_is_named() -> None:
    with pytest.raises(RequestError, match="item 1"):
        completion(prompt=["a", ""])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompt == prompts


def test_prompt_ids_are_ids_of_the_vocabulary() -> None:
    with pytest.raises(RequestError, match="1000 is no token id"):
        completion(prompt=[1, 1000])


@pytest.mark.parametrize("prompt, wanted", [(100, 1), (101, 1), (90, 11), (10, 10**9), (10, 2**63), (100, None)])
def test_what_does_not_fit_names_limit_prompt_and_answer(prompt: int, wanted: int | None) -> None:
    with pytest.raises(RequestError) as caught:
        sampling_for(completion(max_tokens=wanted), [5] * prompt, SETTINGS)
    assert caught.value.code == "context_length_exceeded"
    assert all(str(number) in caught.value.message for number in (100, prompt, wanted or prompt))
    assert "-" not in caught.value.message


@pytest.mark.parametrize("prompt, wanted, granted", [(99, 1, 1), (90, 10, 10), (99, None, 1), (1, None, 99)])
def test_what_fits_exactly_is_granted(prompt: int, wanted: int | None, granted: int) -> None:
    assert sampling_for(completion(max_tokens=wanted), [5] * prompt, SETTINGS).max_tokens == granted


def test_the_newer_name_of_max_tokens_wins() -> None:
    body = chat(max_tokens=7, max_completion_tokens=5)
    assert sampling_for(body, [1], SETTINGS).max_tokens == 5


def test_end_tokens_follow_the_request() -> None:
    assert sampling_for(chat(), [1], SETTINGS).end_ids is None
    assert sampling_for(chat(ignore_eos=True), [1], SETTINGS).end_ids == ()
    assert set(sampling_for(chat(stop_token_ids=[5]), [1], SETTINGS).end_ids or ()) == {2, 5}
    assert sampling_for(chat(stop_token_ids=[5], ignore_eos=True), [1], SETTINGS).end_ids == (5,)


def test_more_candidates_than_the_engine_gives_are_refused() -> None:
    assert chat(logprobs=True, top_logprobs=10)
    assert isinstance(refused(logprobs=True, top_logprobs=11), UnsupportedError)


def test_options_that_need_others_say_so() -> None:
    assert refused(top_logprobs=5).param == "top_logprobs"
    assert refused(stream_options={"include_usage": True}).param == "stream_options"
