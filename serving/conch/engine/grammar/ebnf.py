"""Grammars in the EBNF that upstream takes, as a tree: rules `name ::= ...`, the one to be matched is `root`.

    "text" with \\n \\r \\t \\\\ \\" \\xHH \\uHHHH \\UHHHHHHHH    [a-z] [^a-z]    name
    ( )    a | b    a? a* a+ a{2} a{2,} a{2,5}

Comments start with `#`; a rule may go over several lines. Knows nothing of how a grammar is matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|\#[^\n]*)+) | (?P<text>"(?:[^"\\\n]|\\.)*") | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<rule>[\w.-]+(?=\s*::=)) | (?P<name>[\w.-]+) | (?P<repeat>\{\s*\d+\s*(?:,\s*\d*\s*)?\}|[?*+])
      | (?P<mark>::=|[|()])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0"}
_DEEPEST = 100
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # code points that are no characters


Ranges = tuple[tuple[int, int], ...]
"""Characters, as ranges of code points with both ends included, in order and apart."""


@dataclass(frozen=True)
class Chars:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    part: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Rule:
    """Another rule, by its name."""

    name: str


@dataclass(frozen=True)
class Word:
    """A part that is matched as a whole; a parsed grammar has none yet."""

    part: Node


Node = Chars | Sequence | Choice | Repeat | Rule | Word


def parse_ebnf(text: str) -> dict[str, Node]:
    """The rules by name. Raises ValueError, with the line, for what is no grammar."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise ValueError("has no rule `root`")
    return rules


def nodes(node: Node) -> Iterator[Node]:
    """A node and what is in it, words and other rules unopened."""
    yield node
    match node:
        case Sequence(parts) | Choice(parts):
            for each in parts:
                yield from nodes(each)
        case Repeat(part, _, _):
            yield from nodes(part)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        self._depth = 0
        self._named: list[tuple[str, int]] = []
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found:
                raise self._error(f"cannot read {text[position : position + 20]!r}", position)
            if found.lastgroup != "blank":
                self._tokens.append((str(found.lastgroup), found[0], position))
            position = found.end()

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        while self._at < len(self._tokens):
            kind, name, position = self._next()
            if kind != "rule":
                raise self._error(f"{name!r} is out of place", position)
            if name in rules:
                raise self._error(f"rule `{name}` is defined twice", position)
            self._next()  # ::=
            rules[name] = self._choice()
        for name, position in self._named:
            if name not in rules:
                raise self._error(f"rule `{name}` is not defined", position)
        return rules

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._peek() == ("mark", "|"):
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek()[0] in ("text", "set", "name") or self._peek() == ("mark", "("):
            part = self._part()
            if self._peek()[0] == "repeat":
                part = Repeat(part, *self._counts(*self._next()[1:]))
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Node:
        kind, text, position = self._next()
        if kind == "text":
            codes = [code for code, _ in self._codes(text[1:-1], position)]
            return Sequence(tuple(Chars(((code, code),)) for code in codes))
        if kind == "set":
            return Chars(self._set(text[1:-1], position))
        if kind == "name":
            self._named.append((text, position))
            return Rule(text)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"more than {_DEEPEST} brackets in each other", position)
        inside = self._choice()
        if self._peek() != ("mark", ")"):
            raise self._error("`(` is never closed", position)
        self._at += 1
        self._depth -= 1
        return inside

    def _counts(self, text: str, position: int) -> tuple[int, int | None]:
        if text in "?*+":
            return int(text == "+"), 1 if text == "?" else None
        least, comma, most = text[1:-1].partition(",")
        first, last = int(least), int(most) if most.strip() else None if comma else int(least)
        if last is not None and last < first:
            raise self._error(f"{text} repeats less often than at least", position)
        return first, last

    def _set(self, text: str, position: int) -> Ranges:
        negated = text.startswith("^")
        codes = self._codes(text[negated:], position)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(codes):
            low = high = codes[at][0]
            if at + 2 < len(codes) and codes[at + 1] == (ord("-"), False):
                high = codes[at + 2][0]
                at += 2
            if high < low:
                raise self._error(f"the range {chr(low)}-{chr(high)} is empty", position)
            ranges.append((low, high))
            at += 1
        found = _others(ranges) if negated else _merged(ranges)
        if not found:
            raise self._error("a set of no characters", position)
        return found

    def _codes(self, text: str, position: int) -> list[tuple[int, bool]]:
        """The characters of a text or a set, and whether each was escaped."""
        codes = []
        for found in _ESCAPE.finditer(text):
            *digits, letter, plain = found.groups()
            written = next((each for each in digits if each), None)
            if plain or not written:
                code = ord(plain or _LETTERS.get(letter, letter))
            else:
                code = int(written, 16)
            if letter and letter.isalnum() and letter not in _LETTERS:
                raise self._error(f"the escape \\{letter} has no meaning", position)
            if code > _LAST or _SURROGATES[0] <= code <= _SURROGATES[1]:
                raise self._error(f"{found[0]} is no character", position)
            codes.append((code, not plain))
        return codes

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str, int]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _error(self, what: str, position: int) -> ValueError:
        return ValueError(f"line {self._text.count(chr(10), 0, position) + 1}: {what}")


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    """The same characters in ranges that are in order and do not touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _others(ranges: list[tuple[int, int]]) -> Ranges:
    """Every character that is in none of these ranges."""
    taken = _merged([*ranges, _SURROGATES])
    starts = [0, *(high + 1 for _, high in taken)]
    ends = [*(low - 1 for low, _ in taken), _LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)
