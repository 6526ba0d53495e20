"""Reasoning and answer are told apart the same way however the text was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.answers.message import MessageBuilder
from conch.gateway.answers.reasoning import MARKS, Marks, ReasoningReader
from conch.gateway.answers.replies import ReplyReader
from conch.gateway.calls.markup import HERMES
from conch.gateway.calls.reader import CallReader

THINK = MARKS[0]
CASES = [
    (False, "<think>\nHm < 3.\n</think>\n\nYes.", "Hm < 3.", "Yes."),
    (False, "  <think>Hm</think>Yes </think> no", "Hm", "Yes </think> no"),
    (True, "\nHm\n</think>\n\nYes.", "Hm", "Yes."),
    (False, "Yes. <think>not first</think>", "", "Yes. <think>not first</think>"),
    (False, "<thin ice", "", "<thin ice"),
    (False, "<think>cut off", "cut off", ""),
    (True, "cut </thi", "cut </thi", ""),
    (False, "", "", ""),
    (False, "<think>\n\n</think>\n\nAt once.", "", "At once."),
]


def read(marks: Marks, begun: bool, *pieces: str) -> tuple[str, str]:
    reader = ReasoningReader(marks, begun=begun)
    parts = [*map(reader.push, pieces), reader.flush()]
    return "".join(thought for thought, _ in parts), "".join(text for _, text in parts)


@pytest.mark.conforms("THINK-1")
@pytest.mark.parametrize(("begun", "written", "thought", "text"), CASES, ids=repr)
def test_reasoning_is_what_stands_between_the_marks(begun: bool, written: str, thought: str, text: str) -> None:
    assert read(THINK, begun, written) == (thought, text)
    marks = MARKS[1]
    other = written.replace(THINK.opening, marks.opening).replace(THINK.closing, marks.closing)
    if "thi" not in other.lower().replace("[think]", "").replace("[/think]", ""):
        changed = text.replace(THINK.opening, marks.opening).replace(THINK.closing, marks.closing)
        assert read(marks, begun, other) == (thought, changed)


@given(st.sampled_from(CASES), st.data())
def test_the_cuts_between_pieces_do_not_matter(case: tuple[bool, str, str, str], data: st.DataObject) -> None:
    begun, written, thought, text = case
    cuts = sorted(data.draw(st.sets(st.integers(0, len(written)), max_size=12)))
    pieces = [written[start:end] for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert read(THINK, begun, *pieces) == (thought, text)


@pytest.mark.conforms("THINK-1", "TOOL-6")
def test_a_reply_holds_reasoning_text_and_calls() -> None:
    written = '<think>Which?</think>Wait.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for pieces in ([written], list(written)):
        reader = ReplyReader(
            ReasoningReader(THINK, begun=False), CallReader(HERMES, {"now"}, single=False, forced=False)
        )
        message = MessageBuilder()
        for count, piece in enumerate(pieces, 1):
            message.add(reader.push(piece, count, last=False))
        message.add(reader.push("", len(pieces), last=True))
        said = message.message()
        assert (said["content"], said["reasoning_content"], said["reasoning"]) == ("Wait.", "Which?", "Which?")
        assert [call["function"] for call in said["tool_calls"]] == [{"name": "now", "arguments": "{}"}]
        assert reader.finish_reason("stop") == "tool_calls" and reader.finish_reason("length") == "length"
    assert reader.reasoning_tokens == written.index("k>W") - 1 or 0 < reader.reasoning_tokens < written.index("Wait.")
