"""Calls as structural tags: what guided decoding holds an answer to. Knows nothing of how they are read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conch.gateway.calls.markup import Markup
from conch.gateway.protocol.guided import Schema
from conch.gateway.protocol.tools import Tool

Format = dict[str, Any]
_OTHERWISE = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if")


def calls(markup: Markup, tools: Sequence[Tool], *, single: bool) -> Format:
    """One call at least, and only one if `single`; nothing else."""
    some: Format = {
        "type": "tags_with_separator",
        "tags": [_tag(markup, tool, free=False) for tool in tools],
        "separator": markup.between,
        "at_least_one": True,
        "stop_after_first": single,
    }
    if markup.around is None:
        return some
    return {"type": "tag", "begin": markup.around[0], "content": some, "end": markup.around[1]}


def text_or_calls(markup: Markup, tools: Sequence[Tool], *, single: bool) -> Format:
    """Any text, with calls in it or none; those of `strict` tools have the arguments that they must have."""
    tags = [_tag(markup, tool, free=not tool.function.strict) for tool in tools]
    some: Format = {"type": "tags_with_separator", "tags": tags, "separator": markup.between, "at_least_one": True}
    if not markup.opening:
        text = {"type": "regex", "pattern": r"([^{](.|\n)*)?"}
        return {"type": "or", "elements": [{**some, "stop_after_first": single}, text]}
    if markup.around is not None:
        begin, end = markup.around
        tags = [{"type": "tag", "begin": begin, "content": {**some, "stop_after_first": single}, "end": end}]
    return {"type": "triggered_tags", "triggers": [markup.opening], "tags": tags, "stop_after_first": single}


def _tag(markup: Markup, tool: Tool, *, free: bool) -> Format:
    content = (
        {"type": "json_schema", "json_schema": {"type": "object"}} if free else _arguments(tool.function.parameters)
    )
    return {"type": "tag", "begin": markup.begin_of(tool.function.name), "content": content, "end": markup.end}


def _arguments(schema: Schema | None) -> Format:
    """What arguments must be. Without properties there are none."""
    if not isinstance(schema, dict) or not (schema.get("properties") or any(schema.get(key) for key in _OTHERWISE)):
        return {"type": "const_string", "value": "{}"}
    return {"type": "json_schema", "json_schema": {"type": "object", **schema}}
