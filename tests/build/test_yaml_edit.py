"""Edits of YAML text: the result reads as what was asked for, and what people wrote beside it stays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conch_build.yaml_edit import REMOVED, edited, scalar

TEXT = """\
# The plan
name: a      # its name
engine:
  backend: tensorrt   # engines

  # how much
  size: {tokens: 3, reuse: true}
  draft:
    method: medusa    # heads
    length: 8
# the end
last: [1, 2]
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("name",), "b", "name: b      # its name"),
        (("engine", "backend"), "pytorch", "  backend: pytorch   # engines"),
        (("engine", "size", "tokens"), 4, "  size: {tokens: 4, reuse: true}"),
        (("engine", "size", "reuse"), REMOVED, "  size: {tokens: 3}"),
        (("engine", "size", "tokens"), REMOVED, "  size: {reuse: true}"),
        (("engine", "size", "new"), "x", "  size: {tokens: 3, reuse: true, new: x}"),
        (("engine", "threads"), 2, "  threads: 2"),
        (("engine", "args", "beam"), 4, "    beam: 4"),
        (("more",), True, "more: true"),
        (("last",), [3], "last: [3]"),
    ],
)
def test_one_key_changes_and_every_other_line_stays(path: tuple[str, ...], value: Any, line: str) -> None:
    text, kept = edited(TEXT, {path: value})
    assert kept and line in text.splitlines()
    lost = [own for own in TEXT.splitlines() if own not in text.splitlines()]
    touched = next((own for own in TEXT.splitlines() if f"{line.split(':')[0]}:" in own), None)
    assert lost == ([] if touched is None else [touched])


def test_a_key_that_goes_takes_its_line_and_its_remark_along() -> None:
    text, kept = edited(TEXT, {("engine", "draft", "method"): REMOVED})
    assert kept and "medusa" not in text and "# heads" not in text and "    length: 8\n# the end" in text


def test_what_would_be_left_empty_goes_too() -> None:
    changes = {("engine", "draft", "method"): REMOVED, ("engine", "draft", "length"): REMOVED}
    text, kept = edited(TEXT, changes)
    assert kept and "draft" not in text and "# the end\nlast: [1, 2]" in text


def test_a_key_that_is_not_there_can_go() -> None:
    assert edited(TEXT, {("engine", "nothing", "here"): REMOVED}) == (TEXT, True)


def test_text_without_an_end_of_line_is_edited_too() -> None:
    assert edited("a: 1", {("b",): 2}) == ("a: 1\nb: 2\n", True)
    assert edited("a: 1\nb: 2", {("b",): REMOVED}) == ("a: 1\n", True)


def test_what_cannot_be_edited_is_written_anew() -> None:
    text, kept = edited("base: &b {x: 1}  # shared\nother: *b\n", {("other", "x"): 2})
    assert not kept
    assert yaml.safe_load(text) == {"base": {"x": 1}, "other": {"x": 2}}


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), ("a", "a"), ("1", "'1'"), ([1, "b"], "[1, b]"), (None, "null")]
)
def test_values_are_written_on_one_line(value: Any, text: str) -> None:
    assert scalar(value) == text


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_SCALARS = st.integers() | st.booleans() | st.none() | st.text(st.characters(codec="ascii"), max_size=8)
_TREES = st.dictionaries(
    _NAMES, st.recursive(_SCALARS, lambda inner: st.dictionaries(_NAMES, inner, min_size=1)), min_size=1
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(tuple)


@settings(max_examples=40, deadline=None)
@given(_TREES, st.booleans(), st.dictionaries(_PATHS, _SCALARS | st.just(REMOVED), max_size=3))
def test_any_edit_of_any_tree_reads_as_what_was_asked_for(
    tree: dict[str, Any], braces: bool, changes: dict[tuple[str, ...], Any]
) -> None:
    text = yaml.safe_dump(tree, default_flow_style=braces)
    result, _ = edited(text, changes)
    assert yaml.safe_load(result) == _asked(tree, changes)


def _asked(tree: dict[str, Any], changes: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    for path, value in changes.items():
        tree = _with(tree, path, value)
    return tree


def _with(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A tree with one change: a small model of what `edited` promises."""
    rest = {key: own for key, own in tree.items() if key != path[0]}
    own = tree.get(path[0])
    if len(path) == 1:
        return rest if value is REMOVED else {**tree, path[0]: value}
    if value is REMOVED:
        if not isinstance(own, dict):
            return tree
        inner = _with(own, path[1:], value)
        return {**tree, path[0]: inner} if inner else rest
    return {**tree, path[0]: _with(own if isinstance(own, dict) else {}, path[1:], value)}
