"""Command lines of TensorRT-LLM's and ModelOpt's tools: their flags, and what is wrong with one that is written.

The table is `commands.json`: tool -> flags with their types, defaults and choices. Knows nothing of plans, and reads
no file that a flag names.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from conch_build.profiles.presence import EVERYWHERE, LATER, absence, exists

Values = dict[str, list[str]]
"""Flag, in its first spelling -> its values; none for a switch."""

_NEGATIVE = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True)
class Flag:
    name: str
    type: Literal["flag", "int", "float", "str", "path", "json", "enum", "names"]
    """`flag`: a switch; `names`: choices with commas between them."""
    default: Any = None
    choices: tuple[Any, ...] = ()
    nargs: Literal["", "?", "+"] = ""
    required: bool = False
    repeat: bool = False
    seen: str = EVERYWHERE


@dataclass(frozen=True)
class Tool:
    """One program. `spellings`: every spelling of a flag this release has; `others`: flags of other releases."""

    name: str
    spellings: Mapping[str, Flag]
    others: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    """Flags of older releases -> what stands in their place."""
    positionals: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(dict.fromkeys(self.spellings.values()))

    def problems(self, argv: Sequence[str]) -> list[str]:
        """Everything that is wrong with the words after the program's name."""
        return self.read(argv)[1]

    def read(self, argv: Sequence[str]) -> tuple[Values, list[str]]:
        """The flags that are set, and everything that is wrong."""
        values: Values = {}
        problems: list[str] = []
        loose = self._collect(argv, values, problems)
        if len(loose) > len(self.positionals):
            problems.append(f"{self.name} takes no {' '.join(loose[len(self.positionals) :])}")
        elif len(loose) < len(self.positionals):
            problems.append(f"{' '.join(self.positionals[len(loose) :])} is missing")
        problems += [f"`{flag.name}` is missing" for flag in self.flags if flag.required and flag.name not in values]
        return values, problems

    def _collect(self, argv: Sequence[str], values: Values, problems: list[str]) -> list[str]:
        """Fill `values` and `problems`; gives back the words that belong to no flag."""
        words, loose = list(argv), []
        while words:
            word = words.pop(0)
            if not _is_flag(word):
                loose.append(word)
                continue
            spelling, equals, attached = word.partition("=")
            given = [attached] if equals else []
            flag = self.spellings.get(spelling)
            while not equals and words and not _is_flag(words[0]) and _takes(flag, len(given)):
                given.append(words.pop(0))
            if flag is None:
                problems.append(self._unknown(spelling))
                continue
            if flag.name in values and not flag.repeat:
                problems.append(f"`{flag.name}` is given twice")
            values[flag.name] = given
            problems += _wrong(flag, given)
        return loose

    def _unknown(self, spelling: str) -> str:
        if spelling in self.gone:
            return f"`{spelling}` is no flag of {self.name} any more: {self.gone[spelling]}"
        if spelling in self.others:
            return f"`{spelling}` of {self.name} {self.others[spelling]}"
        near = difflib.get_close_matches(spelling, self.spellings, n=1, cutoff=0.6)
        return f"`{spelling}` is not a flag of {self.name}" + (f"; did you mean `{near[0]}`?" if near else "")


@cache
def tools(snapshots: str) -> Mapping[str, Tool]:
    """Every program of a release."""
    return {
        name: _tool(name, entry, snapshots)
        for name, entry in _table().items()
        if exists(entry.get("seen", EVERYWHERE), snapshots)
    }


def absent_tool(name: str, snapshots: str) -> str | None:
    """Why the release has no such program; None for a name that no release knows."""
    entry = _table().get(name)
    return absence(entry.get("seen", EVERYWHERE), snapshots) if entry else None


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8"))
    return table


def _tool(name: str, entry: Mapping[str, Any], snapshots: str) -> Tool:
    spellings: dict[str, Flag] = {}
    others: dict[str, str] = {}
    for first, facts in entry["flags"].items():
        flag = _flag(first, facts, snapshots)
        for spelling, seen in {first: flag.seen, **facts.get("aliases", {})}.items():
            if exists(flag.seen, snapshots) and exists(seen, snapshots):
                spellings[spelling] = flag
            else:
                others[spelling] = absence(min(flag.seen, seen, key=len), snapshots)
    return Tool(name, spellings, others, entry.get("gone", {}), tuple(entry.get("positionals", ())))


def _flag(name: str, facts: Mapping[str, Any], snapshots: str) -> Flag:
    own = {**facts, **(facts.get("later", {}) if snapshots == LATER else {})}
    return Flag(
        name,
        own["type"],
        own.get("default"),
        tuple(own.get("choices", ())),
        own.get("nargs", ""),
        own.get("required", False),
        own.get("repeat", False),
        own.get("seen", EVERYWHERE),
    )


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word)


def _takes(flag: Flag | None, already: int) -> bool:
    """Whether a flag wants one more word. Of one that is not known, the next word is taken for its value."""
    if flag is None or flag.nargs == "?":
        return already == 0
    return flag.type != "flag" and (flag.nargs == "+" or already == 0)


def _wrong(flag: Flag, given: Sequence[str]) -> Iterator[str]:
    if flag.type == "flag":
        if given:
            yield f"`{flag.name}` takes no value"
        return
    if not given and flag.nargs != "?":
        yield f"`{flag.name}` needs a value"
    for value in given:
        if demand := _demand(flag, value):
            yield f"`{flag.name}` must be {demand}, not {value!r}"


def _demand(flag: Flag, value: str) -> str | None:
    """What a value had to be and is not."""
    if flag.type in ("int", "float"):
        try:
            number = int(value) if flag.type == "int" else float(value)
        except ValueError:
            return "a whole number" if flag.type == "int" else "a number"
        return f"one of {_listed(flag.choices)}" if flag.choices and number not in flag.choices else None
    if flag.type == "enum" and value not in flag.choices:
        return _one_of(flag.choices, value)
    if flag.type == "names":
        unknown = [name for name in value.split(",") if name not in flag.choices]
        return _one_of(flag.choices, unknown[0]) if unknown else None
    if flag.type == "json":
        try:
            json.loads(value)
        except ValueError:
            return "JSON"
    return None


def _one_of(choices: Sequence[Any], value: str) -> str:
    near = difflib.get_close_matches(value, [str(choice) for choice in choices], n=1, cutoff=0.6)
    return f"one of {_listed(choices)}" + (f" (did you mean {near[0]}?)" if near else "")


def _listed(choices: Sequence[Any]) -> str:
    return ", ".join(map(str, choices))
