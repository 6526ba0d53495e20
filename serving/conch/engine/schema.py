"""A JSON schema as it is compiled: read strictly, and its objects closed. Knows nothing of grammars.

As upstream compiles them, an object that lists its properties has no others unless the schema says so: a model
would go on inventing them. Schemas that put an object together from several parts are left as they are,
because no part of them knows the others' properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OF_ONE = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"),
    *("contains", "propertyNames", "not", "if", "then", "else"),
)
_PARTS = ("anyOf", "oneOf", "$ref", "if", "not", "dependentSchemas")
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def readable_schema(text: str) -> dict[str, Any]:
    """The schema that `text` holds. Raises ValueError, with words, if it holds none."""
    try:
        schema = json.loads(text, parse_constant=_no_number, parse_int=_whole_number)
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise ValueError("a JSON schema is an object, not " + json.dumps(schema)[:40])
        return _closed(schema)
    except json.JSONDecodeError as error:
        raise ValueError(f"does not read as JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _no_number(literal: str) -> float:
    raise ValueError(f"does not read as JSON: {literal} is not a number there")


def _whole_number(literal: str) -> int:
    """One that the library does not round."""
    if len(literal) > 20 or not -(1 << 63) <= int(literal) < 1 << 63:
        raise ValueError(f"{literal[:40]} does not fit in 64 bits")
    return int(literal)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if any(_is_composed(node) for node in _nodes(schema)):
        return schema
    for node in _nodes(schema):
        if isinstance(node.get("properties"), dict) and node["properties"] and not any(key in node for key in _OTHERS):
            node["additionalProperties"] = False
    return schema


def _is_composed(node: dict[str, Any]) -> bool:
    about_properties = any(key in node for key in ("properties", "required", "minProperties", *_OTHERS))
    return "allOf" in node or (about_properties and any(part in node for part in _PARTS))


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema, itself included."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in _OF_ONE:
        yield from _nodes(schema.get(key))
    for key in _OF_LISTS:
        for part in schema[key] if isinstance(schema.get(key), list) else ():
            yield from _nodes(part)
    for key in _OF_NAMES:
        for part in schema[key].values() if isinstance(schema.get(key), dict) else ():
            yield from _nodes(part)
