"""Structural tags, XGrammar's texts of which some parts follow a schema, in the Lark dialect of `llguidance`.

    {"type": "structural_tag", "format": FORMAT}, where FORMAT has a `type`:
      const_string value    json_schema json_schema    regex pattern    any_text    sequence elements    or elements
      tag begin content end    tags_with_separator tags separator at_least_one stop_after_first
      triggered_tags triggers tags stop_after_first: any text, in which what begins with a trigger is one of the tags

What else XGrammar has is refused. A special token in a text is that token. Knows nothing of masks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 16
_TEXT = r"/(.|\n)*/"


def structural_lark(
    text: str, special: Mapping[str, int], json_rule: Callable[[str], str], regex: Callable[[str], str]
) -> str:
    """The rules, `start` first. Raises ValueError for what is no structural tag.

    `special`: special tokens by their text. `json_rule` and `regex` put a schema's and a pattern's text into Lark.
    """
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("does not read as JSON") from None
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), dict):
        raise ValueError('a structural tag is {"type": "structural_tag", "format": {...}}')
    return _Writer(special, json_rule, regex).write(tag["format"])


class _Writer:
    def __init__(
        self, special: Mapping[str, int], json_rule: Callable[[str], str], regex: Callable[[str], str]
    ) -> None:
        self._special = special
        self._json_rule = json_rule
        self._regex = regex
        self._rules: list[str] = []
        names = sorted(map(re.escape, special), key=len, reverse=True)
        self._specials = re.compile(f"({'|'.join(names)})") if names else None

    def write(self, node: Any) -> str:
        start = self._expression(node, 0)
        return "\n".join([f"start: {start}", *self._rules])

    def _expression(self, node: Any, depth: int) -> str:
        if not isinstance(node, dict) or depth > _DEEPEST:
            raise ValueError("has a format that is no object, or nested too deeply")
        match node:
            case {"type": "const_string", "value": str(value)}:
                return self._literal(value)
            case {"type": "json_schema", "json_schema": schema}:
                return self._json_rule(json.dumps(schema))
            case {"type": "regex", "pattern": str(pattern)}:
                return f"/{self._regex(pattern)}/"
            case {"type": "any_text"}:
                return _TEXT
            case {"type": "sequence", "elements": [*elements]} if elements:
                return " ".join(f"({self._expression(each, depth + 1)})" for each in elements)
            case {"type": "or", "elements": [*elements]} if elements:
                return " | ".join(f"({self._expression(each, depth + 1)})" for each in elements)
            case {"type": "tag"}:
                return self._tag(node, depth)
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(separator)} if tags:
                return self._separated(node, tags, separator, depth)
            case {"type": "triggered_tags", "tags": [*tags], "triggers": [*triggers]} if tags and triggers:
                return self._triggered(node, tags, triggers, depth)
        raise ValueError(f"cannot read {json.dumps(node)[:100]}")

    def _tag(self, node: Any, depth: int, begun: str = "") -> str:
        """A tag, of which `begun` has been written already."""
        match node:
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                begin = begin.removeprefix(begun)
                if content == {"type": "any_text"}:
                    if not end:
                        raise ValueError("a tag around any text needs an `end`")
                    return f"{self._literal(begin)} {self._up_to(end)}"
                inside = self._expression(content, depth + 1)
                return f"{self._literal(begin)} ({inside}) {self._literal(end)}"
        raise ValueError(f"{json.dumps(node)[:100]} is no tag with `begin`, `content` and `end`")

    def _separated(self, node: Any, tags: list[Any], separator: str, depth: int) -> str:
        one = self._rule(" | ".join(self._tag(tag, depth + 1) for tag in tags))
        some = one if node.get("stop_after_first") else f"{one} ({self._literal(separator)} {one})*"
        return some if node.get("at_least_one") else f"({some})?"

    def _triggered(self, node: Any, tags: list[Any], triggers: list[Any], depth: int) -> str:
        if node.get("at_least_one") or node.get("excludes"):
            raise ValueError("`triggered_tags` with `at_least_one` or `excludes` is not enforced here")
        groups = []
        for trigger in triggers:
            begun = [
                tag for tag in tags if isinstance(tag, dict) and str(tag.get("begin", "")).startswith(str(trigger))
            ]
            if not trigger or not begun:
                raise ValueError(f"no tag begins with the trigger {json.dumps(trigger)}")
            rests = self._rule(" | ".join(self._tag(tag, depth + 1, str(trigger)) for tag in begun))
            groups.append(f"{self._up_to(str(trigger))} {rests}")
        if node.get("stop_after_first"):
            return f"{' | '.join(groups)} | {self._terminal()}"
        return f"({' | '.join(groups)})* {self._terminal()}"

    def _up_to(self, marker: str) -> str:
        """Any text to the first `marker`, which is part of it."""
        if marker in self._special:
            return f"{self._terminal()} <[{self._special[marker]}]>"
        name = f"upto{len(self._rules)}"
        self._rules.append(f"{name}[lazy]: {_TEXT} {json.dumps(marker)}")
        return name

    def _terminal(self) -> str:
        if f"TEXT: {_TEXT}" not in self._rules:
            self._rules.append(f"TEXT: {_TEXT}")
        return "TEXT"

    def _rule(self, expression: str) -> str:
        name = f"rule{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def _literal(self, text: str) -> str:
        parts = self._specials.split(text) if self._specials else [text]
        shown = [f"<[{self._special[part]}]>" if part in self._special else json.dumps(part) for part in parts if part]
        return " ".join(shown) or '""'
