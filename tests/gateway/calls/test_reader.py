"""A growing answer is taken apart the same way however it was cut, and nothing of it is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.answers.message import MessageBuilder
from conch.gateway.calls.markup import HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, Markup
from conch.gateway.calls.reader import CallReader

WEATHER = '{"city": "Oslo", "note": "a } \\" ] </tool_call>"}'
NAMES = {"weather", "now"}


def read(markup: Markup, *pieces: str, single: bool = False, forced: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    """The text, and the calls as (name, arguments)."""
    reader, message = CallReader(markup, NAMES, single=single, forced=forced), MessageBuilder()
    for piece in pieces:
        message.add(reader.push(piece))
    message.add(reader.flush())
    assert len({call["id"] for call in message.calls}) == len(message.calls) == reader.count
    return message.text, [(call["function"]["name"], call["function"]["arguments"]) for call in message.calls]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO = [("weather", WEATHER), ("now", "{}")]
WRITTEN = [
    (HERMES, hermes(*TWO[0]) + "\n" + hermes(*TWO[1]), ""),
    (HERMES, f"Let me see.\n{hermes(*TWO[0])}{hermes(*TWO[1])}\n", "Let me see."),
    (HERMES, f'<tool_call>{{"name":"weather","arguments":{WEATHER}}}</tool_call><tool_call>{{"name":"now"}}', ""),
    (HERMES, f'<tool_call>{{"arguments":{WEATHER},"name":"weather"}}</tool_call> {hermes("now", "null")}', ""),
    (LLAMA, f'{{"name": "weather", "parameters": {WEATHER}}}; {{"name": "now", "parameters": {{}}}}', ""),
    (LLAMA, f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}\n{{"name": "now"}}', ""),
    (MISTRAL, f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "now", "arguments": {{}}}}]', ""),
    (MISTRAL, f'Hm [TOOL_CALLS] [{{"name":"weather","arguments":{WEATHER}}},{{"name":"now"}}]', "Hm"),
    (MISTRAL_ARGS, f"[TOOL_CALLS]weather[ARGS]{WEATHER}[TOOL_CALLS]now[ARGS]{{}}", ""),
    (MISTRAL_ARGS, f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{WEATHER}[TOOL_CALLS]now{{}}", ""),
]


@pytest.mark.parametrize(("markup", "written", "text"), WRITTEN, ids=lambda value: getattr(value, "name", ""))
def test_every_way_of_writing_is_read(markup: Markup, written: str, text: str) -> None:
    said, calls = read(markup, written)
    assert said == text
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        (name, json.loads(arguments)) for name, arguments in TWO
    ]


PLAIN = [
    (HERMES, "No call at all < here >."),
    (HERMES, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
    (HERMES, "<tool_call>not JSON</tool_call> and on"),
    (HERMES, '<tool_call>{"name": 7}</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "wea'),
    (LLAMA, '{"answer": 42}'),
    (LLAMA, 'Say {"name": "weather", "parameters": {}}'),
    (LLAMA, "<|python"),
    (MISTRAL, "[TOOL_CALLS] nothing"),
]


@pytest.mark.parametrize(("markup", "written"), PLAIN, ids=lambda value: getattr(value, "name", ""))
def test_what_only_looks_like_a_call_is_text(markup: Markup, written: str) -> None:
    assert read(markup, written) == (written, [])


@given(st.sampled_from([case[:2] for case in (*WRITTEN, *PLAIN)]), st.data())
def test_the_cuts_between_pieces_do_not_matter(case: tuple[Markup, str], data: st.DataObject) -> None:
    markup, written = case
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(written) - 1)), max_size=12)))
    pieces = [written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert read(markup, *pieces) == read(markup, written) == read(markup, *written)


def test_a_call_after_one_that_was_none_is_read() -> None:
    text, calls = read(HERMES, f"<tool_call>oops</tool_call> {hermes('now', '{}')}")
    assert (text, calls) == ("<tool_call>oops</tool_call>", [("now", "{}")])


def test_arguments_pass_through_as_they_come() -> None:
    reader = CallReader(HERMES, NAMES, single=False, forced=False)
    assert reader.push('<tool_call>{"name": "weather", "arguments": ')
    assert reader.push('{"ci')
    assert reader.push('ty": ')


def test_arguments_in_a_text_are_taken_out_of_it() -> None:
    assert read(HERMES, hermes("weather", json.dumps('{"city": "Oslo"}'))) == ("", [("weather", '{"city": "Oslo"}')])


def test_a_cut_call_keeps_what_came() -> None:
    assert read(HERMES, hermes(*TWO[0])[:60])[1] == [("weather", WEATHER[: 60 - hermes(*TWO[0]).index("{", 15)])]
    assert read(HERMES, '<tool_call>\n{"name": "wea', forced=True) == ("", [])


def test_only_the_first_call_counts_when_one_is_wanted() -> None:
    reader = CallReader(HERMES, NAMES, single=True, forced=False)
    reader.push(hermes("now", "{}") + hermes("now", "{}") + "text")
    assert reader.done and reader.count == 1 and reader.flush() == []


def test_ids_have_the_form_that_the_template_wants() -> None:
    for markup, length in ((MISTRAL, 9), (HERMES, 29)):
        written = next(text for known, text, _ in WRITTEN if known is markup)
        message = MessageBuilder()
        message.add(CallReader(markup, NAMES, single=False, forced=False).push(written))
        assert {len(call["id"]) for call in message.calls} == {length}
