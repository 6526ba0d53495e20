"""Types of the LLM API's arguments, as the table writes them, and whether a YAML value is of one.

    bool  str  path  python  mapping  enum  null        `python`: an object that YAML has no form for
    int  int>0  int>=0  float  float>=0  float 0..1
    list[T]  dict[K,V]  A|B

Names with a capital are objects with fields of their own, which `arguments` checks. Numbers are not taken from text,
nor truth from numbers: pydantic would, and then a typo reads as a value.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

_INTS = {"int": None, "int>0": 1, "int>=0": 0}
_WORDS = {
    "bool": "true or false",
    "str": "text",
    "path": "a path",
    "python": "left out: it is a Python object, which YAML cannot write",
    "mapping": "a mapping",
    "null": "null",
    "int": "a whole number",
    "int>0": "a whole number above 0",
    "int>=0": "a whole number, 0 or more",
    "float": "a number",
    "float>=0": "a number, 0 or more",
    "float 0..1": "a number from 0 to 1",
}


def alternatives(type_: str) -> list[str]:
    """`list[int|str]|null` -> `list[int|str]`, `null`."""
    return _split(type_, "|")


def is_object(type_: str) -> bool:
    """Whether a type (no union) names an object with fields of its own."""
    return type_[0].isupper()


def fits(value: Any, type_: str, choices: Sequence[Any] = (), any_case: bool = False) -> bool:
    """Whether a value is of a type that names no object."""
    return any(_fits(value, one, choices, any_case) for one in alternatives(type_))


def whole(value: Any, default: int = 0) -> int:
    """A whole number, or the default in its place."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def demand(value: Any, type_: str, choices: Sequence[Any] = ()) -> str:
    """What a value of the type had to be, for one that is not."""
    words = [_word(one, choices) for one in alternatives(type_)]
    text = " or ".join(word for word in words if word)
    near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1, cutoff=0.6)
    return text + (f" (did you mean {near[0]}?)" if near else "")


def _fits(value: Any, type_: str, choices: Sequence[Any], any_case: bool) -> bool:
    if type_ == "null":
        return value is None
    if type_ == "bool":
        return isinstance(value, bool)
    if type_ in _INTS:
        low = _INTS[type_]
        return isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)
    if type_.startswith("float"):
        return _fits_number(value, type_)
    if type_ in ("str", "path"):
        return isinstance(value, str) and (type_ == "str" or bool(value))
    if type_ == "mapping":
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if type_ == "enum":
        return isinstance(value, str) and _chosen(value, choices, any_case)
    if type_.startswith("list["):
        return isinstance(value, list) and all(fits(one, type_[5:-1], choices, any_case) for one in value)
    if type_.startswith("dict["):
        key_type, value_type = _split(type_[5:-1], ",")
        return isinstance(value, dict) and all(
            fits(key, key_type) and fits(one, value_type) for key, one in value.items()
        )
    return False


def _fits_number(value: Any, type_: str) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        return False
    return {"float": True, "float>=0": value >= 0, "float 0..1": 0 <= value <= 1}[type_]


def _chosen(value: str, choices: Sequence[Any], any_case: bool) -> bool:
    return value in choices or (any_case and value.lower() in [str(choice).lower() for choice in choices])


def _word(type_: str, choices: Sequence[Any]) -> str:
    if type_ == "enum":
        return f"one of {', '.join(map(str, choices))}"
    if type_.startswith("list["):
        return f"a list, each {_word(type_[5:-1], choices)}"
    if type_.startswith("dict["):
        key, value = _split(type_[5:-1], ",")
        return f"a mapping from {_word(key, ())} to {_word(value, ())}"
    return _WORDS.get(type_, f"a mapping ({type_})")


def _split(text: str, mark: str) -> list[str]:
    """Parts between marks that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
