"""The same documents twice: with the default values in them, and with Helm's expressions in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Value:
    """A leaf that the chart's user may set: `.Values.<path>`. With `name`: a mapping that gets that `name` as well.

    `unless`: switches; where one is on, the leaf is left to others.
    """

    path: str
    name: str | None = None
    unless: tuple[str, ...] = ()

    def expression(self) -> str:
        value = f".Values.{self.path}"
        if self.unless:
            switches = " ".join(f".Values.{switch}" for switch in self.unless)
            return f"toJson (ternary nil {value} (or {switches}))"
        return f'toJson (merge (dict "name" "{self.name}") {value})' if self.name else f"toJson {value}"

    def default(self, values: Mapping[str, Any]) -> Any:
        if any(at(values, switch) for switch in self.unless):
            return None
        found = at(values, self.path)
        return {"name": self.name, **found} if self.name else found


@dataclass(frozen=True)
class Document:
    """A Kubernetes object. `when`: the path of the value that switches it on."""

    file: str
    body: Mapping[str, Any]
    when: str | None = None


def at(values: Mapping[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def manifest(document: Document, values: Mapping[str, Any]) -> str | None:
    """With the default values; None for what they switch off."""
    if document.when is not None and not at(values, document.when):
        return None
    return _yaml(_replaced(document.body, lambda value: value.default(values)))


def template(document: Document) -> str:
    """With Helm's expressions: JSON is YAML, so that one way to write a value fits texts, numbers and mappings."""
    marked = _yaml(_replaced(document.body, lambda value: f"@@{value.expression()}@@"))
    # What begins an expression in the texts themselves (alerts have some) is passed through as it is.
    literal = marked.replace("{{", _braced('"{{"'))
    text = re.sub(r"(?:'@@(.*?)@@'|@@(.*?)@@)", lambda found: _braced(_plain(found[1] or found[2])), literal)
    return text if document.when is None else f"{{{{- if .Values.{document.when} }}}}\n{text}{{{{- end }}}}\n"


def _braced(expression: str) -> str:
    return f"{{{{ {expression} }}}}"


def _plain(quoted: str) -> str:
    """Out of YAML's single quotes."""
    return quoted.replace("''", "'")


def _replaced(body: Any, become: Callable[[Value], Any]) -> Any:
    if isinstance(body, Value):
        return become(body)
    if isinstance(body, Mapping):
        return {key: _replaced(item, become) for key, item in body.items()}
    if isinstance(body, Sequence) and not isinstance(body, str):
        return [_replaced(item, become) for item in body]
    return body


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text and " \n" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(body: Any) -> str:
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=100_000)
