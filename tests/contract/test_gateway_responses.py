"""/v1/responses with the official SDK: items in and out, events, what is remembered, what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.contract.conftest import Gateway

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
PICTURE = {"type": "input_image", "image_url": "http://127.0.0.1:9/x.png"}
GREEDY: Any = {"model": "smollm2", "temperature": 0}


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.conforms("RESP-1", "GEN-3")
def test_a_text_is_answered(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(**GREEDY, input="Say hi", max_output_tokens=60, metadata={"a": "b"})
    assert answer.status == "completed" and answer.output_text
    assert answer.usage is not None and answer.usage.input_tokens == 32
    assert answer.usage.total_tokens == 32 + answer.usage.output_tokens
    assert answer.metadata == {"a": "b"}
    chat = sdk.chat.completions.create(**GREEDY, messages=[{"role": "user", "content": "Say hi"}], max_tokens=60)
    assert chat.choices[0].message.content == answer.output_text


@pytest.mark.conforms("RESP-2", "GEN-1")
def test_a_stream_tells_of_every_step(sdk: openai.OpenAI) -> None:
    whole = sdk.responses.create(**GREEDY, input="Say hi", max_output_tokens=60)
    events = list(sdk.responses.create(**GREEDY, input="Say hi", max_output_tokens=60, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type.removeprefix("response.") for event in events]
    assert types[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(types[4:-4]) == {"output_text.delta"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last: Any = events[-1]
    assert text == whole.output_text == last.response.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.conforms("RESP-3", "GEN-2")
@pytest.mark.parametrize("count", [1, 16])
def test_a_cut_answer_is_incomplete(sdk: openai.OpenAI, count: int) -> None:
    asked: Any = {**GREEDY, "input": "Tell me a long story.", "max_output_tokens": count}
    answer = sdk.responses.create(**asked)
    last: Any = list(sdk.responses.create(**asked, stream=True))[-1]
    assert last.type == "response.incomplete"
    for response in (answer, last.response):
        assert response.status == response.output[0].status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage.output_tokens == count and response.output_text


@pytest.mark.conforms("RESP-4")
def test_a_conversation_goes_on_from_what_is_remembered(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(**GREEDY, input="My name is Ada.", max_output_tokens=30, instructions="Be brief.")
    second = sdk.responses.create(**GREEDY, input="And then?", previous_response_id=first.id, max_output_tokens=8)
    said: Any = [
        {"role": "user", "content": "My name is Ada."},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "And then?"},
    ]
    same = sdk.responses.create(**GREEDY, input=said, max_output_tokens=8)
    assert second.output_text == same.output_text
    assert second.usage is not None and same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    assert sdk.responses.retrieve(first.id).output_text == first.output_text
    sdk.responses.delete(first.id)
    forgotten = sdk.responses.create(**GREEDY, input="x", max_output_tokens=1, store=False).id
    for name in (first.id, forgotten, "resp_unknown"):
        with pytest.raises(openai.NotFoundError) as caught:
            sdk.responses.create(**GREEDY, input="x", previous_response_id=name)
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            sdk.responses.retrieve(name)


@pytest.mark.conforms("RESP-5", "TOOL-6")
def test_a_function_is_called_and_answered(sdk: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "input": "Weather in Oslo?", "tools": [WEATHER], "max_output_tokens": 80}
    choice: Any = {"type": "function", "name": "get_weather"}
    answer = sdk.responses.create(**asked, tool_choice="required")
    call: Any = answer.output[0]
    assert call.type == "function_call" and json.loads(call.arguments).keys() == {"city"}
    events = list(sdk.responses.create(**asked, tool_choice=choice, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    items: Any = [
        {"role": "user", "content": "Weather in Oslo?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"},
    ]
    assert sdk.responses.create(**GREEDY, input=items, tools=[WEATHER], max_output_tokens=8).output_text
    after = sdk.responses.create(**GREEDY, input=items[2:], previous_response_id=answer.id, max_output_tokens=8)
    assert after.output_text


@pytest.mark.conforms("RESP-1", "GUIDE-1")
def test_structured_output_is_parsed(sdk: openai.OpenAI) -> None:
    parsed = sdk.responses.parse(**GREEDY, input="Ada is 36.", text_format=Person, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Person)
    with sdk.responses.stream(**GREEDY, input="Say hi", max_output_tokens=60) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output_text


@pytest.mark.conforms("RESP-1", "GEN-7")
def test_log_probs_are_in_the_text(sdk: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "input": "Say hi", "max_output_tokens": 5, "top_logprobs": 2}
    answer = sdk.responses.create(**asked, include=["message.output_text.logprobs"])
    message: Any = answer.output[0]
    assert [len(entry.top_logprobs) for entry in message.content[0].logprobs] == [2] * 5


@pytest.mark.conforms("RESP-6", "REQ-3", "RESP-5", "GEN-12")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            "input[0].content",
        ),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "nonsense": 1}, "nonsense"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"input": "x", "max_output_tokens": 10**9}, "max_output_tokens"),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "strng"}}}},
            "text.format",
        ),
    ],
    ids=str,
)
def test_errors_name_this_endpoints_parameters(gateway: Gateway, body: Any, param: str) -> None:
    assert gateway.refused("responses", **body)["param"] == param


@pytest.mark.conforms("TOOL-9", "RESP-5")
@pytest.mark.parametrize("arguments", ['{"text": "unfinished', "", "null", "[1]", '"x"'])
def test_broken_calls_in_the_items_poison_nothing(gateway: Gateway, arguments: str) -> None:
    items = [
        {"role": "user", "content": "note it"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "note", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "not run"}]},
        {"role": "user", "content": "go on"},
    ]
    assert gateway.ok("responses", input=items, max_output_tokens=2)["status"] in ("completed", "incomplete")
