"""What guided decoding is told to allow is what the reader reads, in every way of writing calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conch.gateway.answers.message import MessageBuilder
from conch.gateway.calls import enforce
from conch.gateway.calls.markup import MARKUPS, Markup
from conch.gateway.calls.reader import CallReader
from conch.gateway.protocol import Tool
from conch_build.pipeline import BuildResult
from tests.engine.test_structural import Judge

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    Tool.model_validate({"type": "function", "function": function})
    for function in (
        {"name": "weather", "parameters": CITY, "strict": True},
        {"name": "now", "parameters": {"type": "object"}},
    )
]
RIGHT = [("weather", '{"city": "Oslo"}'), ("now", "{}")]


@pytest.fixture(scope="module")
def judge(sample_build: BuildResult) -> Judge:
    return Judge(sample_build.engine.path / "tokenizer")


def written(markup: Markup, *calls: tuple[str, str]) -> str:
    text = markup.between.join(f"{markup.begin_of(name)}{arguments}{markup.end}" for name, arguments in calls)
    return text.join(markup.around) if markup.around else text


def read(markup: Markup, text: str) -> tuple[str, list[tuple[str, str]]]:
    reader, message = CallReader(markup, {"weather", "now"}, single=False, forced=False), MessageBuilder()
    message.add([*reader.push(text), *reader.flush()])
    return message.text, [(call["function"]["name"], call["function"]["arguments"]) for call in message.calls]


@pytest.mark.conforms("TOOL-1", "TOOL-3", "TOOL-7", "TOOL-10")
@pytest.mark.parametrize("markup", MARKUPS.values(), ids=MARKUPS)
def test_forced_calls_are_calls_and_nothing_else(judge: Judge, markup: Markup) -> None:
    several, one = (enforce.calls(markup, TOOLS, single=single) for single in (False, True))
    for calls in (RIGHT[:1], RIGHT[1:], RIGHT):
        text = written(markup, *calls)
        assert read(markup, text) == ("", calls)
        assert judge.allows(several, text)
        assert judge.allows(one, text) == (len(calls) == 1)
    for name, arguments in (("weather", '{"town": "Oslo"}'), ("weather", "{}"), ("now", '{"x": 1}'), ("later", "{}")):
        assert not judge.allows(several, written(markup, (name, arguments)))
    assert not judge.allows(several, "") and not judge.allows(several, "It rains.")


@pytest.mark.conforms("TOOL-5", "TOOL-10")
@pytest.mark.parametrize("markup", MARKUPS.values(), ids=MARKUPS)
def test_a_free_answer_is_text_or_calls_that_are_right(judge: Judge, markup: Markup) -> None:
    form = enforce.text_or_calls(markup, TOOLS, single=False)
    assert judge.allows(form, "It rains.") and judge.allows(form, "")
    assert judge.allows(form, written(markup, *RIGHT))
    assert judge.allows(form, written(markup, ("now", '{"loose": true}')))
    assert not judge.allows(form, written(markup, ("weather", '{"town": "Oslo"}')))


@pytest.mark.conforms("TOOL-3")
@pytest.mark.parametrize(
    ("parameters", "has_any"),
    [
        (None, False),
        ({}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, False),
        (CITY, True),
        ({"additionalProperties": {"type": "string"}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": CITY}}, True),
    ],
    ids=json.dumps,
)
def test_a_tool_has_the_parameters_that_its_schema_lists(parameters: Any, has_any: bool) -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": parameters}})
    (tag,) = enforce.calls(MARKUPS["hermes"], [tool], single=True)["tags"]
    assert (tag["content"]["type"] == "json_schema") == has_any
