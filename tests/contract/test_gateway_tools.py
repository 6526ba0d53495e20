"""Tools: forced calls are valid even from a model that was never taught to call, free ones are left to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conftest import Gateway, choices, reason_of, text_of

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "ping"}},
]
ASKED = {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "max_tokens": 64, "temperature": 0}


def calls_of(answer: Any, index: int = 0) -> list[tuple[str, str]]:
    """(name, arguments), however they came."""
    if isinstance(answer, dict):
        calls = answer["choices"][index]["message"].get("tool_calls", [])
        return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    joined: dict[int, list[str]] = {}
    for choice in choices(answer, index):
        for delta in choice["delta"].get("tool_calls", []):
            function = delta["function"]
            if "id" in delta:
                assert delta["index"] not in joined and delta["type"] == "function" and function["name"]
                joined[delta["index"]] = [function["name"], ""]
            else:
                assert "name" not in function
            joined[delta["index"]][1] += function["arguments"]
    assert list(joined) == list(range(len(joined)))
    return [(name, arguments) for name, arguments in joined.values()]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.conforms("TOOL-1", "TOOL-6", "GEN-2")
@pytest.mark.parametrize("way", [{}, {"temperature": 1, "seed": 4}, {"temperature": 1.5, "seed": 9}], ids=str)
def test_a_required_call_is_made_and_valid(gateway: Gateway, way: dict[str, Any]) -> None:
    body = {**ASKED, "max_tokens": 300, "tools": TOOLS, "tool_choice": "required", **way}
    whole = gateway.ok("chat/completions", **body)
    assert reason_of(whole) == "tool_calls"
    assert whole["choices"][0]["message"]["content"] is None
    for name, arguments in calls_of(whole):
        assert name in ("get_weather", "now", "ping")
        assert isinstance(json.loads(arguments), dict)
        assert (json.loads(arguments).keys() == {"city"}) == (name == "get_weather")
    stream = gateway.ok("chat/completions", **body, stream=True)
    assert calls_of(stream) == calls_of(whole) and reason_of(stream) == "tool_calls"
    assert text_of(stream) == ""


@pytest.mark.conforms("TOOL-2", "TOOL-3")
def test_a_named_function_is_called_once(gateway: Gateway) -> None:
    for name in ("get_weather", "now", "ping"):
        answer = gateway.ok("chat/completions", **ASKED, tools=TOOLS, tool_choice=named(name))
        ((called, arguments),) = calls_of(answer)
        assert called == name and reason_of(answer) == "tool_calls"
        assert arguments == "{}" if name != "get_weather" else json.loads(arguments).keys() == {"city"}


@pytest.mark.conforms("TOOL-2", "REQ-7")
@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (TOOLS, named("nope")),
        (TOOLS, {"type": "function"}),
        (TOOLS, "always"),
        ([], "required"),
        (None, "required"),
        (None, named("ping")),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_refused(gateway: Gateway, tools: Any, choice: Any) -> None:
    assert gateway.refused("chat/completions", **ASKED, tools=tools, tool_choice=choice)["param"] == "tool_choice"


@pytest.mark.conforms("TOOL-8")
def test_a_cut_call_has_one_shape(gateway: Gateway) -> None:
    for count in (3, 22, 28):
        body = {**ASKED, "max_tokens": count, "tools": TOOLS, "tool_choice": named("get_weather")}
        whole, stream = gateway.ok("chat/completions", **body), gateway.ok("chat/completions", **body, stream=True)
        assert reason_of(whole) == reason_of(stream) == "length"
        assert calls_of(whole) == calls_of(stream) and text_of(whole) == text_of(stream) == ""


@pytest.mark.conforms("TOOL-4")
def test_no_call_is_made_when_none_is_wanted(gateway: Gateway) -> None:
    plain = gateway.ok("chat/completions", **ASKED)
    none = gateway.ok("chat/completions", **ASKED, tools=TOOLS, tool_choice="none")
    assert "tool_calls" not in none["choices"][0]["message"]
    assert text_of(none) == text_of(plain) != ""


@pytest.mark.conforms("TOOL-5")
def test_a_free_model_may_answer(gateway: Gateway) -> None:
    for strict in (False, True):
        tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": strict}}]
        answer = gateway.ok("chat/completions", **ASKED, tools=tools)
        assert text_of(answer) or calls_of(answer)
        assert answer["usage"]["prompt_tokens"] > 60


@pytest.mark.conforms("TOOL-5", "GUIDE-3")
def test_a_strict_tool_is_held_to_its_schema_even_where_it_need_not_be_called(gateway: Gateway) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "strng"}}}}
    loose, strict = ({"type": "function", "function": {**function, "strict": strict}} for strict in (False, True))
    assert gateway.ok("chat/completions", **{**ASKED, "max_tokens": 1}, tools=[loose])
    error = gateway.refused("chat/completions", **ASKED, tools=[strict])
    assert error["param"] == "tools" and "strng" in error["message"]


@pytest.mark.conforms("TOOL-7", "TOOL-6")
def test_several_calls_are_for_those_who_ask(gateway: Gateway) -> None:
    body = {**ASKED, "max_tokens": 120, "tools": TOOLS, "tool_choice": "required"}
    assert len(calls_of(gateway.ok("chat/completions", **body))) == 1
    assert len(calls_of(gateway.ok("chat/completions", **body, parallel_tool_calls=False))) == 1
    several = gateway.ok("chat/completions", **body, parallel_tool_calls=True)
    assert len(calls_of(several)) > 1
    assert calls_of(gateway.ok("chat/completions", **body, parallel_tool_calls=True, stream=True)) == calls_of(several)
    ids = [call["id"] for call in several["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.conforms("TOOL-9", "TOOL-10")
def test_a_conversation_with_tools_goes_on(gateway: Gateway) -> None:
    first = gateway.ok("chat/completions", **ASKED, tools=TOOLS, tool_choice=named("get_weather"))
    message = first["choices"][0]["message"]
    turns = [
        *ASKED["messages"],
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Rain, 4 degrees."},
    ]
    second = gateway.ok("chat/completions", messages=turns, tools=TOOLS, max_tokens=30, temperature=0)
    assert text_of(second)
    shown = gateway.http.post("/tokenize", json={"messages": turns, "tools": TOOLS}).json()["tokens"]
    text = gateway.http.post("/detokenize", json={"tokens": shown}).json()["prompt"]
    assert "get_weather" in text and "Rain, 4 degrees." in text and text.count("<tool_call>") == 2


@pytest.mark.conforms("TOOL-11")
def test_allowed_tools_are_the_only_ones(gateway: Gateway) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("ping"), named("now")]}}
    answer = gateway.ok("chat/completions", **ASKED, tools=TOOLS, tool_choice=choice)
    assert calls_of(answer)[0][0] in ("ping", "now")


@pytest.mark.conforms("TOOL-11")
def test_an_answer_with_a_format_or_calls(gateway: Gateway) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    answer = gateway.ok("chat/completions", **{**ASKED, "max_tokens": 120}, tools=TOOLS, response_format=form)
    assert calls_of(answer) or json.loads(text_of(answer)).keys() == {"city"}
    error = gateway.refused("chat/completions", **ASKED, tools=TOOLS, guided_regex="a")
    assert error["param"] == "guided_regex"


@pytest.mark.conforms("TOOL-1", "GEN-4")
def test_each_of_several_answers_calls(gateway: Gateway) -> None:
    body = {**ASKED, "max_tokens": 200, "temperature": 1, "seed": 2, "n": 3}
    answer = gateway.ok("chat/completions", **body, tools=TOOLS, tool_choice="required")
    assert all(len(calls_of(answer, index)) == 1 for index in range(3))


@pytest.mark.conforms("REQ-9", "TOOL-1")
@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {"name": "bad name"}}],
        [{"type": "web_search"}],
        [TOOLS[0], TOOLS[0]],
        [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)],
        [{"type": "function", "function": {"name": "f", "description": "x" * 140_000}}],
    ],
    ids=["name", "type", "twice", "many", "large"],
)
def test_tools_that_are_none_or_too_much_are_refused(gateway: Gateway, tools: Any) -> None:
    assert gateway.refused("chat/completions", **ASKED, tools=tools)["param"].startswith("tools")


@pytest.mark.conforms("TOOL-1", "GUIDE-3")
def test_a_tool_with_a_wrong_schema_is_refused_when_it_must_be_called(gateway: Gateway) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "strng"}}}}}]
    error = gateway.refused("chat/completions", **ASKED, tools=tools, tool_choice="required")
    assert error["param"] == "tools" and "strng" in error["message"]
