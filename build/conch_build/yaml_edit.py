"""Changes to a YAML mapping in its own text: values replaced, keys removed or added, comments and order kept.

What text editing cannot do right (aliases, keys inside a mapping in braces) is written anew, without comments; the
result always reads as exactly what was asked for. Knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

Path = tuple[str, ...]


class _Removed:
    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Any = _Removed()
"""In place of a value: the key goes away, and what holds it too if nothing else is left."""


def edited(text: str, changes: Mapping[Path, Any]) -> tuple[str, bool]:
    """The text with `changes` made, and whether its comments are still there.

    A change of a key that is not in the text adds it. Raises yaml.YAMLError for text that is no YAML.
    """
    wanted = _changed(yaml.safe_load(text), changes)
    result = text
    try:
        for path, value in changes.items():
            result = _edit(result, path, value)
        if yaml.safe_load(result) == wanted:
            return result, True
    except (yaml.YAMLError, LookupError):
        pass
    return yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True), False


def scalar(value: Any) -> str:
    """A value on one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()


def _changed(data: Any, changes: Mapping[Path, Any]) -> Any:
    result = _unshared(data)
    for path, value in changes.items():
        if value is REMOVED:
            _remove(result, path)
            continue
        place = result
        for name in path[:-1]:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[path[-1]] = value
    return result


def _unshared(data: Any) -> Any:
    """A copy in which nothing is in two places: an alias in the text would take a change along."""
    if isinstance(data, dict):
        return {key: _unshared(value) for key, value in data.items()}
    return [_unshared(value) for value in data] if isinstance(data, list) else data


def _remove(data: dict[str, Any], path: Path) -> None:
    inner = data.get(path[0])
    if len(path) > 1 and isinstance(inner, dict):
        _remove(inner, path[1:])
        if inner:
            return
    elif len(path) > 1:
        return
    data.pop(path[0], None)


def _edit(text: str, path: Path, value: Any) -> str:
    """One change. Raises LookupError where the text has another form than a key a line."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entries = _entries(root, path)
    if value is REMOVED:
        return _without(text, entries) if len(entries) == len(path) else text
    if len(entries) == len(path):
        start, end = entries[-1][1].start_mark.index, _end(entries[-1][1])
        return f"{text[:start]}{scalar(value)}{text[end:]}"
    return _with(text, root, entries, path[len(entries) :], value)


Entry = tuple[yaml.Node, yaml.Node, yaml.MappingNode]
"""Key, value, and the mapping that they are in."""


def _entries(root: yaml.Node | None, path: Path) -> list[Entry]:
    """What of the path is there, from the outermost key on."""
    found: list[Entry] = []
    node = root
    for name in path:
        if not isinstance(node, yaml.MappingNode):
            break
        entry = next(((key, value) for key, value in node.value if key.value == name), None)
        if entry is None:
            break
        found.append((*entry, node))
        node = entry[1]
    return found


def _without(text: str, entries: list[Entry]) -> str:
    while len(entries) > 1 and len(entries[-1][2].value) == 1:
        entries = entries[:-1]  # the mapping would be left empty
    key, value, parent = entries[-1]
    if parent.flow_style:
        return _without_in_braces(text, entries[-1])
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    end = text.find("\n", _end(value))
    return text[:start] + ("" if end < 0 else text[end + 1 :])


def _without_in_braces(text: str, entry: Entry) -> str:
    key, value, parent = entry
    keys = [own for own, _ in parent.value]
    number = keys.index(key)
    if number + 1 < len(keys):
        return text[: key.start_mark.index] + text[keys[number + 1].start_mark.index :]
    before = parent.value[number - 1][1]
    return text[: _end(before)] + text[_end(value) :]


def _with(text: str, root: yaml.Node | None, entries: list[Entry], rest: Path, value: Any) -> str:
    parent = entries[-1][1] if entries else root
    if not isinstance(parent, yaml.MappingNode) or not parent.value:
        raise LookupError
    last_key, last_value = parent.value[-1]
    if parent.flow_style:
        for name in reversed(rest[1:]):
            value = {name: value}
        at = _end(last_value)
        return f"{text[:at]}, {rest[0]}: {scalar(value)}{text[at:]}"
    indent = last_key.start_mark.column
    lines = [f"{' ' * (indent + 2 * depth)}{name}:" for depth, name in enumerate(rest)]
    lines[-1] += f" {scalar(value)}"
    at = text.find("\n", _end(last_value))
    if at < 0:
        return "\n".join([text, *lines]) + "\n"
    return "\n".join([text[:at], *lines]) + text[at:]


def _end(node: yaml.Node) -> int:
    """Where a value ends: a mapping's own mark is behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
