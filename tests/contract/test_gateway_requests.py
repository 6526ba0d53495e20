"""What a request may hold: shapes, nulls, extremes, limits. After each refusal the next request answers."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.contract.conftest import Gateway, reason_of, text_of

HELLO = [{"role": "user", "content": "Hello"}]
NULLABLE = (
    *(
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "temperature",
        "top_p",
        "n",
        "seed",
        "logprobs",
        "logit_bias",
    ),
    *("tools", "tool_choice", "response_format", "stream", "stream_options", "user", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty"),
)


def prompt_tokens(gateway: Gateway, messages: list[Any]) -> int:
    answer = gateway.ok("chat/completions", messages=messages, max_tokens=1, temperature=0)
    return int(answer["usage"]["prompt_tokens"])


def test_there_is_exactly_one_start_token(gateway: Gateway) -> None:
    assert prompt_tokens(gateway, HELLO) == 31
    answer = gateway.ok("completions", prompt="Say hi", max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.conforms("GEN-12")
def test_text_parts_equal_the_plain_text(gateway: Gateway) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi"}]
    assert prompt_tokens(gateway, [{"role": "user", "content": parts}]) == 32
    assert prompt_tokens(gateway, [{"role": "user", "content": "Say hi"}]) == 32


@pytest.mark.conforms("GEN-13")
def test_a_developer_is_a_system_turn(gateway: Gateway) -> None:
    counts = [
        prompt_tokens(gateway, [{"role": role, "content": "Be brief."}, *HELLO]) for role in ("system", "developer")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *HELLO],
        [{"role": "system", "content": "a"}],
        [*HELLO, *HELLO],
        [{"role": "user", "content": ""}],
    ],
)
def test_unusual_conversations_are_answered(gateway: Gateway, messages: list[Any]) -> None:
    assert prompt_tokens(gateway, messages) > 1


@pytest.mark.conforms("TOOL-9")
def test_a_broken_tool_call_does_not_poison_a_conversation(gateway: Gateway) -> None:
    for arguments in ('{"text": "unfinished', "", "null", "[1]", '"x"', {"text": "x"}):
        call = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": arguments}}
        turns = [
            {"role": "user", "content": "note it"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "not run"},
            {"role": "user", "content": "go on"},
        ]
        assert prompt_tokens(gateway, turns) > 20


@pytest.mark.conforms("REQ-7")
@pytest.mark.parametrize("messages", [[], {}, [{"role": "wizard", "content": "x"}], [{"role": "user"}]])
def test_bad_messages_are_refused(gateway: Gateway, messages: Any) -> None:
    error = gateway.refused("chat/completions", messages=messages)
    assert error["param"].startswith("messages")


def test_missing_messages_are_refused(gateway: Gateway) -> None:
    assert gateway.refused("chat/completions")["param"] == "messages"
    assert gateway.refused("chat/completions", messages=None)["param"] == "messages"


@pytest.mark.conforms("REQ-1")
@pytest.mark.parametrize("raw", [b"", b"[]", b'"x"', b'{"mess', b'{"temperature": NaN}', b"\xff\xfe"])
def test_what_is_no_json_object_is_refused(gateway: Gateway, raw: bytes) -> None:
    response = gateway.http.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.conforms("REQ-1")
def test_another_content_type_is_refused(gateway: Gateway) -> None:
    response = gateway.http.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


@pytest.mark.conforms("REQ-2")
def test_null_means_absent(gateway: Gateway) -> None:
    plain = {"prompt": "1, 2,", "max_tokens": 6, "temperature": 0}
    text = text_of(gateway.ok("completions", **plain))
    nulls = [name for name in NULLABLE if name not in (*plain, "max_completion_tokens", "tools", "tool_choice")]
    for name in (name for name in nulls if name != "response_format"):
        assert text_of(gateway.ok("completions", **plain, **{name: None})) == text
    chat = {"messages": HELLO, "max_tokens": 6, "temperature": 0}
    everything = {**dict.fromkeys(NULLABLE), **chat}
    assert text_of(gateway.ok("chat/completions", **everything)) == text_of(gateway.ok("chat/completions", **chat))


@pytest.mark.conforms("REQ-4")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 999999),
        ("temperature", -1),
        ("top_p", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -5),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("seed", 2**63),
    ],
)
def test_sampling_out_of_range_is_refused(gateway: Gateway, name: str, value: float) -> None:
    assert gateway.refused("completions", prompt="a", **{name: value})["param"] == name


def test_extreme_but_legal_sampling_is_answered(gateway: Gateway) -> None:
    greedy = text_of(gateway.ok("completions", prompt="1, 2,", max_tokens=6, temperature=0))
    assert text_of(gateway.ok("completions", prompt="1, 2,", max_tokens=6, temperature=1e-9)) == greedy
    for extreme in ({"top_k": 10**9}, {"top_k": 0}, {"top_p": 1e-9}, {"seed": -1}, {"seed": 2**63 - 1}):
        assert gateway.ok("completions", prompt="1, 2,", max_tokens=2, **extreme)


@pytest.mark.conforms("GEN-6")
def test_a_seed_repeats_an_answer(gateway: Gateway) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 7}
    assert text_of(gateway.ok("completions", **body)) == text_of(gateway.ok("completions", **body))


@pytest.mark.parametrize("bias", [{"49152": 5}, {"-1": 5}, {"abc": 5}, {"17": 1e9}, {"17": None}])
def test_a_bad_bias_is_refused_and_hurts_nobody(gateway: Gateway, bias: dict[str, Any]) -> None:
    error = gateway.refused("chat/completions", messages=HELLO, max_tokens=4, logit_bias=bias)
    assert error["param"] == "logit_bias"
    assert next(iter(bias)) in error["message"] and "49152" in error["message"]
    assert gateway.ok("chat/completions", messages=HELLO, max_tokens=4)


@pytest.mark.conforms("GEN-6")
def test_a_bias_works_both_ways(gateway: Gateway) -> None:
    body = {"prompt": "1, 2,", "max_tokens": 3, "temperature": 0}
    forced = gateway.ok("completions", **body, logit_bias={"28": 100})
    forbidden = gateway.ok("completions", **body, logit_bias={"28": -100})
    assert text_of(forced) == ",,,"
    assert "," not in text_of(forbidden)


@pytest.mark.parametrize("prompt", ["", [""], ["", "a"], [], [[]]])
def test_an_empty_prompt_is_refused(gateway: Gateway, prompt: Any) -> None:
    assert gateway.refused("completions", prompt=prompt)["param"] == "prompt"


def test_each_prompt_has_its_choice(gateway: Gateway) -> None:
    prompts = ["1, 2,", "a, b,", "10, 11,"]
    single = [text_of(gateway.ok("completions", prompt=p, max_tokens=6, temperature=0)) for p in prompts]
    for stream in (False, True):
        answer = gateway.ok("completions", prompt=prompts, max_tokens=6, temperature=0, stream=stream)
        assert [text_of(answer, index) for index in range(3)] == single
        assert [reason_of(answer, index) for index in range(3)] == ["length"] * 3


def test_token_ids_are_taken_as_they_are(gateway: Gateway) -> None:
    answer = gateway.ok("completions", prompt=[[1, 28], [1, 28, 216]], max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.conforms("REQ-6")
def test_the_edge_of_the_context(gateway: Gateway) -> None:
    limit = gateway.context
    for prompt, wanted, count in ((limit - 1, 1, 1), (limit - 10, 10, 10), (limit - 1, None, 1)):
        body = {"prompt": [28] * prompt, "temperature": 0, "ignore_eos": True, "max_tokens": wanted}
        answer = gateway.ok("completions", **body)
        assert reason_of(answer) == "length"
        assert answer["usage"]["completion_tokens"] == count
    for prompt, wanted in (
        (limit - 1, 2),
        (limit, 1),
        (limit + 1, 1),
        (limit - 10, 11),
        (10, 10**9),
        (10, 2**63),
    ):
        error = gateway.refused("completions", prompt=[28] * prompt, max_tokens=wanted)
        assert error["code"] == "context_length_exceeded"
        assert all(str(number) in error["message"] for number in (limit, prompt, wanted))


@pytest.mark.conforms("REQ-1")
def test_a_body_that_is_too_large_is_refused(gateway: Gateway) -> None:
    response = gateway.http.post(
        "/v1/completions", content=b" " * (9 << 20), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


@pytest.mark.conforms("REQ-8")
def test_curl_gets_an_answer_and_its_request_id(gateway: Gateway) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 2, "stream": True})
    command = ["curl", "-siN", f"{gateway.url}/v1/chat/completions", "-H", "content-type: application/json"]
    command += ["-H", "x-request-id: mine", "-d", body]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    head, _, events = output.replace("\r\n", "\n").partition("\n\n")
    assert "x-request-id: mine" in head
    assert "text/event-stream" in head
    assert events.endswith("data: [DONE]\n\n")
