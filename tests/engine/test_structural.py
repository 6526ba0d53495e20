"""Structural tags: what they allow and what they do not, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from conch.engine.guide import Guide
from conch.engine.guided import Grammar, Vocabulary
from conch_build.errors import RequestError
from conch_build.pipeline import BuildResult

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
END = 2


def tag(name: str, content: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": f'<call>{{"name": "{name}", "args": ', "content": content, "end": "}</call>"}


WEATHER = tag("weather", {"type": "json_schema", "json_schema": CITY})
NOW = tag("now", {"type": "const_string", "value": "{}"})
CALLED = '<call>{"name": "weather", "args": {"city": "Oslo"}}</call>'
PLAIN = '<call>{"name": "now", "args": {}}</call>'
SOME = {"type": "tags_with_separator", "tags": [WEATHER, NOW], "separator": "\n", "at_least_one": True}
FREE = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [WEATHER, NOW]}


class Judge:
    def __init__(self, folder: Path) -> None:
        self._vocabulary = Vocabulary(folder, 49152, frozenset({END}))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def allows(self, form: Any, text: str) -> bool:
        """Whether `text` is a whole answer."""
        guide = Guide("structural_tag", json.dumps({"type": "structural_tag", "format": form}))
        matcher = Grammar(guide, self._vocabulary).matcher(frozenset({END}))
        for token in self._tokenizer.encode(text, add_special_tokens=False).ids:
            if not matcher.allows(token):
                logits = np.zeros(49152, np.float32)
                matcher.mask(logits)
                if logits[token] < 0:
                    return False
            matcher.accept(token)
        return matcher.allows(END)


@pytest.fixture(scope="module")
def judge(sample_build: BuildResult) -> Judge:
    return Judge(sample_build.engine.path / "tokenizer")


RENAMED = CALLED.replace("city", "town")
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "calls": (
        SOME,
        [CALLED, PLAIN, f"{CALLED}\n{PLAIN}"],
        ["", "hi", CALLED[:-3], CALLED + PLAIN, RENAMED],
    ),
    "one call": ({**SOME, "stop_after_first": True}, [CALLED, PLAIN], [f"{CALLED}\n{PLAIN}"]),
    "any calls": ({**SOME, "at_least_one": False}, ["", CALLED], ["hi"]),
    "triggered": (
        FREE,
        ["", "hi <ca", f"hi {CALLED} and {PLAIN}."],
        [CALLED.replace("Oslo", 'x", "y": "'), "<call>x", CALLED[:-3], RENAMED],
    ),
    "triggered once": ({**FREE, "stop_after_first": True}, ["hi", f"hi {CALLED}"], [CALLED + CALLED, CALLED + "x"]),
    "or": (
        {"type": "or", "elements": [{"type": "json_schema", "json_schema": CITY}, SOME]},
        ['{"city": "x"}', CALLED],
        ["x"],
    ),
    "sequence": (
        {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, {"type": "regex", "pattern": "b+"}]},
        ["ab", "abbb"],
        ["a", "b"],
    ),
    "text in a tag": (
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        ["<t>x</t>"],
        ["<t>x", "<t>x</t>y"],
    ),
}


@pytest.mark.parametrize(("form", "right", "wrong"), CASES.values(), ids=CASES)
def test_what_a_tag_allows(judge: Judge, form: Any, right: list[str], wrong: list[str]) -> None:
    assert [judge.allows(form, text) for text in right] == [True] * len(right)
    assert [judge.allows(form, text) for text in wrong] == [False] * len(wrong)


def test_a_special_token_is_that_token(judge: Judge) -> None:
    """`<repo_name>` is one token of the sample's; text does not spell it."""
    form = {**FREE, "triggers": ["<repo_name>"], "tags": [{**NOW, "begin": "<repo_name>x"}]}
    assert judge.allows(form, "hi <repo_name>x{}}</call>")
    assert not judge.allows(form, "hi <repo_name>y")
    assert judge.allows({"type": "const_string", "value": "a<repo_name>b"}, "a<repo_name>b")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"type": "structural_tag"}',
        '{"type": "structural_tag", "format": {"type": "nonsense"}}',
        json.dumps({"type": "structural_tag", "format": {**FREE, "at_least_one": True}}),
        json.dumps({"type": "structural_tag", "format": {**FREE, "triggers": ["nowhere"]}}),
        json.dumps(
            {"type": "structural_tag", "format": tag("x", {"type": "json_schema", "json_schema": {"type": "strng"}})}
        ),
    ],
)
def test_what_is_no_tag_is_refused(judge: Judge, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        Grammar(Guide("structural_tag", text), judge._vocabulary)
    assert caught.value.param == "guided_decoding_guide"
