"""Arguments of TensorRT-LLM's LLM API: which a release has, of which types, and what is wrong with a set of them.

The table is `llm_args.json`: object -> fields. Upstream checks them only on a machine with a GPU. What fields say of
each other is in `argument_rules` and `speculation_rules`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conch_build.profiles import types
from conch_build.profiles.decoding import BASE, KINDS, kinds_of
from conch_build.profiles.presence import AROUND, EVERYWHERE, LATER, SNAPSHOTS, absence, exists
from conch_build.profiles.problem import Problem

ROOTS = {"pytorch": ("BaseLlmArgs", "TorchLlmArgs"), "tensorrt": ("BaseLlmArgs", "TrtLlmArgs")}
"""Backend -> the objects that its arguments are in."""

SPECULATIVE = "Speculative"
"""Type of `speculative_config`, whose `decoding_type` says which object it is."""


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    any_case: bool = False
    required: bool = False
    unsure: bool = False
    """Sources around the release differ in the default, or not all have the field: who cares writes a value."""


def parts() -> set[str]:
    """Names of all objects."""
    return set(_table())


def fields_of(part: str, snapshots: str) -> Mapping[str, Field]:
    """Fields of one object in a release."""
    return _objects(snapshots)[part]


def arguments_of(backend: str, snapshots: str) -> Mapping[str, Field]:
    """All arguments of a backend in a release."""
    return {name: field for part in ROOTS[backend] for name, field in fields_of(part, snapshots).items()}


def speculation_fields(decoding_type: str, snapshots: str) -> Mapping[str, Field]:
    """Fields of one way to speculate, without its `decoding_type`."""
    part = kinds_of(snapshots)[decoding_type].part
    return {**fields_of(BASE, snapshots), **fields_of(part, snapshots)}


def defaults_of(part: str, snapshots: str) -> dict[str, Any]:
    """Values that a release takes for what is left out, as far as they are known; what must be given has none."""
    fields = fields_of(part, snapshots).values()
    return {field.name: field.default for field in fields if not (field.required or field.unsure)}


def field_problems(args: Mapping[str, Any], backend: str, snapshots: str) -> Iterator[Problem]:
    """Unknown keys and wrong values, at every level."""
    others = [part for roots in ROOTS.values() for part in roots]
    yield from _of_object(args, "", arguments_of(backend, snapshots), others, snapshots)


def _of_object(
    value: Mapping[str, Any], prefix: str, fields: Mapping[str, Field], sources: list[str], snapshots: str
) -> Iterator[Problem]:
    for name, given in value.items():
        if name in fields:
            yield from _of_field(given, prefix + name, fields[name], snapshots)
        else:
            yield _unknown(str(name), prefix, fields, sources, snapshots)
    for name, field in fields.items():
        if field.required and name not in value:
            yield Problem(prefix + name, "is missing", f"Set `{prefix}{name}`.")


def _of_field(value: Any, key: str, field: Field, snapshots: str) -> Iterator[Problem]:
    for one in types.alternatives(field.type):
        if types.is_object(one) and isinstance(value, Mapping):
            yield from _of_nested(value, key, one, snapshots)
            return
        if not types.is_object(one) and types.fits(value, one, field.choices, field.any_case):
            return
    must = types.demand(value, field.type, field.choices)
    yield Problem(key, f"must be {must}, not {value!r}")


def _of_nested(value: Mapping[str, Any], key: str, part: str, snapshots: str) -> Iterator[Problem]:
    if part != SPECULATIVE:
        yield from _of_object(value, f"{key}.", fields_of(part, snapshots), [part], snapshots)
        return
    kinds, kind = kinds_of(snapshots), value.get("decoding_type")
    if not isinstance(kind, str) or kind not in kinds:
        yield _wrong_kind(kind, f"{key}.decoding_type", snapshots)
        return
    rest = {name: given for name, given in value.items() if name != "decoding_type"}
    fields = speculation_fields(kind, snapshots)
    yield from _of_object(rest, f"{key}.", fields, [BASE, kinds[kind].part], snapshots)


def _wrong_kind(given: Any, key: str, snapshots: str) -> Problem:
    kinds = kinds_of(snapshots)
    fix = f"Use one of {', '.join(kinds)}."
    if given is None:
        return Problem(key, "is missing", fix)
    for kind in KINDS:
        if given not in kind.spellings.values():
            continue
        if snapshots in kind.spellings:
            own = kind.spellings[snapshots]
            return Problem(key, f"`{given}` is spelled `{own}` in this release", f"Write `{own}`.")
        having = [name for name, letters in SNAPSHOTS.items() if letters in kind.spellings]
        return Problem(key, f"`{given}` is not in this release; {', '.join(having)} has it", fix)
    near = difflib.get_close_matches(str(given), kinds, n=1, cutoff=0.6)
    return Problem(key, f"there is no `{given}`", f"Did you mean `{near[0]}`?" if near else fix)


def _unknown(name: str, prefix: str, fields: Mapping[str, Field], sources: list[str], snapshots: str) -> Problem:
    key = prefix + name
    for part in sources:
        if name in fields_of(part, snapshots):
            backend = next(backend for backend, roots in ROOTS.items() if part in roots)
            return Problem(key, f"is an argument of the {backend} backend alone", "Remove it.")
    seen = [facts[name].get("seen", EVERYWHERE) for facts in map(_table().__getitem__, sources) if name in facts]
    if seen:
        return Problem(key, absence(max(seen, key=len), snapshots), "Remove it.")
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
    where = f"of `{prefix[:-1]}`" if prefix else "of the LLM API"
    return Problem(key, f"is no argument {where}", f"Did you mean `{prefix}{near[0]}`?" if near else "Remove it.")


@cache
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(
        Path(__file__).with_name("llm_args.json").read_text(encoding="utf-8")
    )
    return table


@cache
def _objects(snapshots: str) -> Mapping[str, Mapping[str, Field]]:
    return {
        part: {
            name: _field(name, facts, snapshots)
            for name, facts in fields.items()
            if exists(facts.get("seen", EVERYWHERE), snapshots)
        }
        for part, fields in _table().items()
    }


def _field(name: str, facts: Mapping[str, Any], snapshots: str) -> Field:
    later = facts.get("later", {}) if snapshots == LATER else {}
    own = {**facts, **later}
    default_moved = later.get("default", own.get("default")) != facts.get("default")
    return Field(
        name,
        own["type"],
        own.get("default"),
        tuple(own.get("choices", ())),
        own.get("any_case", False),
        own.get("required", False),
        own.get("unsure", False) or not exists(facts.get("seen", EVERYWHERE), AROUND[snapshots]) or default_moved,
    )
