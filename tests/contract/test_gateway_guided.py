"""What an answer must be, it is: enforced by the engine, or refused with words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contract.conftest import Gateway, reason_of, text_of

PERSON = [{"role": "user", "content": "Tell me about a person."}]
TEXT = "😀👩‍👩‍👧 깰中文 ❤️ é  two  spaces , it 's"
BOUNDED = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        "i": {"type": "integer", "minimum": 3, "maximum": 7},
    },
    "required": ["s", "i"],
    "additionalProperties": False,
}
LIST = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.conforms("GUIDE-1", "GEN-1")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", [BOUNDED, LIST], ids=["bounds", "recursive"])
def test_an_answer_follows_its_schema(gateway: Gateway, schema: Any, strict: bool) -> None:
    body = {"messages": PERSON, "max_tokens": 200, "response_format": schema_format(schema, strict=strict)}
    whole = gateway.ok("chat/completions", **body, temperature=0)
    if reason_of(whole) == "stop":
        Draft202012Validator(schema).validate(json.loads(text_of(whole)))
    assert text_of(gateway.ok("chat/completions", **body, temperature=0, stream=True)) == text_of(whole)
    sampled = gateway.ok("chat/completions", **body, seed=1, n=3)
    for index in range(3):
        assert reason_of(sampled, index) == "length" or json.loads(text_of(sampled, index)) is not None


@pytest.mark.conforms("GUIDE-1")
def test_every_character_arrives_whole(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {"x": {"const": TEXT}}, "required": ["x"], "additionalProperties": False}
    for stream in (False, True):
        answer = gateway.ok(
            "chat/completions", messages=PERSON, max_tokens=200, response_format=schema_format(schema), stream=stream
        )
        assert json.loads(text_of(answer)) == {"x": TEXT}
        for event in answer if stream else ():
            assert "\N{REPLACEMENT CHARACTER}" not in json.dumps(event, ensure_ascii=False)


@pytest.mark.conforms("GUIDE-2")
def test_a_json_object_is_an_object(gateway: Gateway) -> None:
    for way in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        answer = gateway.ok("chat/completions", messages=PERSON, max_tokens=200, temperature=0, **way)
        assert text_of(answer).lstrip().startswith("{")
        assert reason_of(answer) == "length" or isinstance(json.loads(text_of(answer)), dict)


@pytest.mark.conforms("GUIDE-3", "REQ-7")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/loop", "$defs": {"loop": {"$ref": "#/$defs/loop"}}},
        {"type": "strng"},
        {"enum": []},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://127.0.0.1:9/s.json"},
    ],
    ids=json.dumps,
)
def test_a_schema_that_cannot_be_enforced_is_refused(gateway: Gateway, schema: Any) -> None:
    error = gateway.refused("chat/completions", messages=PERSON, response_format=schema_format(schema))
    assert error["param"] == "response_format" and len(error["message"]) > 40
    assert gateway.ok("chat/completions", messages=PERSON, max_tokens=1)


@pytest.mark.conforms("GUIDE-3")
@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "xml"},
        {"type": "text", "json_schema": {"name": "x"}},
        "json",
    ],
    ids=json.dumps,
)
def test_half_a_response_format_is_refused(gateway: Gateway, given: Any) -> None:
    assert gateway.refused("chat/completions", messages=PERSON, response_format=given)["param"].startswith(
        "response_format"
    )


GUIDES: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_regex": r"\d{3}-[a-z]{2}"}, r"\d{3}-[a-z]{2}"),
    ({"guided_grammar": 'root ::= "a" [0-9]{2} | "b"'}, r"a\d\d|b"),
    ({"guided_json": {"enum": ["red", "blue"]}}, '"(red|blue)"'),
    ({"guided_json": '{"enum": [1, 2]}'}, "1|2"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"regex": "[ab]{4}"}}, "[ab]{4}"),
    ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, "x|y"),
    ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
]


@pytest.mark.conforms("GUIDE-4")
@pytest.mark.parametrize(("guide", "pattern"), GUIDES, ids=lambda value: json.dumps(value)[:40])
def test_vllms_ways_to_say_it(gateway: Gateway, guide: dict[str, Any], pattern: str) -> None:
    chat = gateway.ok("chat/completions", messages=PERSON, max_tokens=100, temperature=0, **guide)
    text = gateway.ok("completions", prompt="Answer:", max_tokens=100, temperature=0, **guide)
    for answer in (chat, text):
        assert reason_of(answer) == "stop"
        assert re.fullmatch(pattern, text_of(answer))


@pytest.mark.conforms("GUIDE-4", "GUIDE-3")
def test_a_wrong_guide_is_blamed_on_its_parameter(gateway: Gateway) -> None:
    for guide in ({"guided_regex": "(("}, {"guided_grammar": "root ::= missing"}, {"guided_json": '{"type":"strng"}'}):
        assert gateway.refused("completions", prompt="a", **guide)["param"] == next(iter(guide))
    error = gateway.refused("completions", prompt="a", structured_outputs={"regex": "a", "choice": ["b"]})
    assert error["param"] == "structured_outputs"


@pytest.mark.conforms("GUIDE-5")
def test_two_guides_are_refused(gateway: Gateway) -> None:
    error = gateway.refused("completions", prompt="a", guided_regex="a", guided_choice=["b"])
    assert error["param"] == "guided_choice" and "guided_regex" in error["message"]
