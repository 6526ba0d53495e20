"""What a guide is, and the grammar it stands for, in the words of `llguidance`.

The kinds are upstream's, by the names of its Triton backend, and one of ours: `choice`. What a guide says is
enforced or refused, never left out. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from conch.engine.grammar import to_lark
from conch.engine.schema import readable_schema
from conch.engine.structural import structural_lark
from conch_build.errors import RequestError

GuideKind = Literal["json", "json_schema", "regex", "ebnf_grammar", "structural_tag", "choice"]
GUIDE_KINDS: tuple[GuideKind, ...] = get_args(GuideKind)
MAX_GUIDE_BYTES = 1 << 17
"""Of a guide's text: some thousand enum values or properties, and about a second of compiling."""
MAX_REGEX_BYTES = 1 << 13
"""The library's work on a regular expression grows with the square of its length, to two seconds for the worst."""

_POINTER = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")
_ADVICE = re.compile(r" \(limit|; (?:either|try) ")
"""Where the library goes on about its own settings."""
_PARAM = "guided_decoding_guide"
_JSON = {
    # Blanks between two marks: one space, or a new line with its indentation. An answer cannot drown in them.
    "whitespace_pattern": r" |\n {0,15}",
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}


@dataclass(frozen=True)
class Guide:
    """What an answer must be."""

    kind: GuideKind
    text: str = ""
    """json: nothing; json_schema: the schema; the others: themselves; choice: a JSON list of texts."""


def grammar_of(guide: Guide, special: Mapping[str, int] = MappingProxyType({})) -> str:
    """The guide as a grammar for `LLMatcher`; `special`: the special tokens by their text.

    Raises RequestError if it does not read as what it claims to be.
    """
    from llguidance import LLMatcher

    size = len(guide.text.encode("utf-8", "replace"))
    if size > MAX_GUIDE_BYTES:
        raise refusal(f"has {size} bytes; at most {MAX_GUIDE_BYTES} are compiled")
    try:
        match guide.kind:
            case "json":
                rules = _json_rule({"type": ["object", "array"]})
            case "json_schema":
                rules = _json_rule(readable_schema(guide.text))
            case "regex":
                rules = f"start: /{_regex(guide.text)}/"
            case "choice":
                choices = ("".join(map(_escaped, choice)) for choice in choices_in(guide.text))
                rules = f"start: /{'|'.join(choices)}/"
            case "structural_tag":
                rules = structural_lark(guide.text, special, _json_part, _regex)
            case "ebnf_grammar":
                rules = to_lark(guide.text)
    except ValueError as error:
        raise refusal(str(error)) from None
    # What a grammar leaves no choice about is not worked out ahead: it may be a megabyte, looked at for every token.
    return LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{rules}')


def refusal(what: str) -> RequestError:
    """The error of a guide that is wrong, or that the library gave up on with these words."""
    return RequestError(_sentence(what), param=_PARAM, code="invalid_value", where=_PARAM)


def _sentence(what: str) -> str:
    """The library's words without its way of pointing into a grammar that its caller never saw."""
    lines = [line.strip() for line in what.replace("<non-verbose/>", "").splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    said = said or _POINTER.sub("", lines[0] if lines else "")
    if not said or "NoExtension" in said:
        return "no answer can satisfy it"
    if any(words in said for words in ("too big", "too many", "too large", "max is", "fuel", "limit")):
        return f"is too complex: {_ADVICE.split(said)[0]}"
    return said[:300]


def _regex(text: str) -> str:
    from llguidance import regex_to_lark

    size = len(text.encode("utf-8", "replace"))
    if size > MAX_REGEX_BYTES:
        raise ValueError(f"has a regular expression of {size} bytes; at most {MAX_REGEX_BYTES} are compiled")
    return regex_to_lark(text, "dw")


def _json_rule(schema: dict[str, Any]) -> str:
    return f"start: {_json(schema)}"


def _json_part(text: str) -> str:
    return _json(readable_schema(text))


def _json(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON})}"


def choices_in(text: str) -> list[str]:
    """The texts of a guide of the kind `choice`. Raises ValueError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValueError("a choice is a JSON list of texts, none of them empty")
    return choices


def _escaped(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"
