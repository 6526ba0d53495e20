"""Advice as a plan file, each line with its reason, and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from conch_build.advise.choose import Advice
from conch_build.advise.rules import TABLE

_WIDTH = 118


def plan_text(advice: Advice) -> str:
    """YAML that loads as the advice's plan."""
    reasons = {choice.key: choice.why for choice in advice.choices}
    lines = ["# A plan for Conch, as `conch advise` chose it. `conch check` reads it, `conch build` builds it."]
    lines += _lines(advice.data, reasons, "", 0)
    return "\n".join(lines) + "\n"


def advice_text(advice: Advice) -> str:
    blocks = []
    for choice in advice.choices:
        excluded = f" Excludes {choice.excludes}." if choice.excludes else ""
        lines = [f"{choice.key}: {_scalar(choice.value)}", *_wrapped(f"{_sentence(choice.why)}{excluded}")]
        for refused in choice.refused:
            lines += _wrapped(f"Not {refused}.")
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def rules_text() -> str:
    """The table, key by key."""
    lines: list[str] = []
    for number, row in enumerate(TABLE):
        if not number or TABLE[number - 1].key != row.key:
            lines.append(row.key)
        excluded = f" Excludes {row.excludes}." if row.excludes else ""
        lines += _wrapped(f"{row.when}: {row.why}.{excluded}")
    return "\n".join(lines)


def _lines(data: Mapping[str, Any], reasons: Mapping[str, str], prefix: str, depth: int) -> list[str]:
    lines = []
    for name, value in data.items():
        key, indent = f"{prefix}{name}", "  " * depth
        if isinstance(value, Mapping):
            lines += ["", f"{indent}{name}:"] if not depth else [f"{indent}{name}:"]
            lines += _lines(value, reasons, f"{key}.", depth + 1)
            continue
        if key in reasons:
            lines += textwrap.wrap(reasons[key], _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        lines.append(f"{indent}{name}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, width=10_000).removesuffix("...\n").strip()


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
