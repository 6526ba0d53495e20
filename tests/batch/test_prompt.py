"""A row becomes a prompt, and a document that is too long becomes parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.batch.prompt import Prompt
from conch.batch.split import split
from conch_build.errors import InputError

ROW = {"text": "Fish {id}", "id": 7, "none": None, "list": [1]}


@pytest.mark.parametrize(
    ("template", "prompt", "document"),
    [
        ("{text}", "Fish {id}", "text"),
        ('{id}: {text} as {"a": 1}', '7: Fish {id} as {"a": 1}', "text"),
        ("{{ text | upper }} {{ list[0] }}", "FISH {ID} 1", "text"),
        ("{% if id > 3 %}{{ text }}{% endif %}", "Fish {id}", "text"),
    ],
)
def test_a_template_takes_columns(template: str, prompt: str, document: str) -> None:
    asked = Prompt(template, list(ROW))
    assert (asked.render(ROW), asked.document) == (prompt, document)


@pytest.mark.parametrize("template", ["no column", "{nothing}", "{{ nothing }}", "{{ text", "{% for %}"])
def test_a_template_that_cannot_work_is_refused_before_any_row(template: str) -> None:
    with pytest.raises(InputError):
        Prompt(template, list(ROW))


@pytest.mark.parametrize("text", [None, 7, ["a"], "", " \n"])
def test_a_row_without_a_document_says_what_it_lacks(text: Any) -> None:
    with pytest.raises(InputError, match="'text'"):
        Prompt("{text}", ["text"]).render({"text": text})


@pytest.mark.parametrize(
    "template",
    [
        "{{ text.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }} {{ text }}",
        "{{ list.append(1) }} {{ text }}",
        "{{ text.missing.more }}",
    ],
)
def test_a_template_reaches_nothing_but_the_row(template: str) -> None:
    with pytest.raises(InputError):
        Prompt(template, list(ROW), "text").render(ROW)


@given(text=st.text(max_size=300), chars=st.integers(1, 60))
def test_parts_joined_are_the_text_and_none_is_too_long(text: str, chars: int) -> None:
    parts = split(text, chars)
    assert "".join(parts) == text
    assert all(len(part) <= chars for part in parts)
    assert all(parts) or not text


def test_a_text_is_cut_between_paragraphs_then_sentences_then_words() -> None:
    assert split("One two. Three four.\n\nFive six seven", 24) == ["One two. Three four.\n\n", "Five six seven"]
    assert split("One two. Three four five", 16) == ["One two. ", "Three four five"]
    assert split("One two three four", 12) == ["One two ", "three four"]
    assert split("x" * 10, 4) == ["xxxx", "xxxx", "xx"]
