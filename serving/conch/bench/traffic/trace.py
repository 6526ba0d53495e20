"""Recorded traffic, a request a line: `{"time": 0.5, "input_tokens": 900, "output_tokens": 120}`.

`time` in seconds; `prompt` may stand in place of `input_tokens`, and `model` beside them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch_build.errors import InputError

_KEYS = {"time", "input_tokens", "prompt", "output_tokens", "model"}


@dataclass(frozen=True)
class Call:
    time: float
    output_tokens: int
    input_tokens: int = 0
    prompt: str | None = None
    model: str | None = None


def load_trace(path: Path) -> list[Call]:
    """In the order of their times, the first at 0. Raises InputError, with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from None
    calls = [_call(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not calls:
        raise InputError("the trace is empty", where=str(path), fix="Give it a JSON object a line.")
    calls.sort(key=lambda call: call.time)
    first = calls[0].time
    return [Call(c.time - first, c.output_tokens, c.input_tokens, c.prompt, c.model) for c in calls]


def _call(line: str, where: str) -> Call:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", where=where)
    if unknown := data.keys() - _KEYS:
        raise InputError(f"unknown key {min(unknown)!r}", where=where, fix=f"Keys: {', '.join(sorted(_KEYS))}.")
    if ("prompt" in data) == ("input_tokens" in data):
        raise InputError("needs either `input_tokens` or `prompt`", where=where)
    for key in ("prompt", "model"):
        if not isinstance(data.get(key, ""), str):
            raise InputError(f"`{key}` is not a text", where=where)
    return Call(
        _number(data, "time", 0, where),
        int(_number(data, "output_tokens", 1, where)),
        0 if "prompt" in data else int(_number(data, "input_tokens", 1, where)),
        data.get("prompt"),
        data.get("model"),
    )


def _number(data: dict[str, Any], key: str, least: int, where: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise InputError(f"`{key}` is not a number from {least} on", where=where)
    return value
