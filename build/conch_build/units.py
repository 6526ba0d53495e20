"""Byte sizes and durations as people write them (`1GiB`, `100ms`), parsed once and carried as numbers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_BYTES = {
    "B": 1,
    **{unit + "B": 1000**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
    **{unit + "iB": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)},
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_MOST = float(1 << 62)
"""Bytes or seconds that can still be counted in 64 bits."""
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def _parse(value: Any, units: dict[str, float], example: str) -> float:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} needs a number and a unit, as in {example!r} (units: {', '.join(units)})")
    known = {unit.lower(): factor for unit, factor in units.items()}
    factor = known.get(match[2].lower())
    if factor is None:
        raise ValueError(f"unknown unit {match[2]!r} in {value!r} (units: {', '.join(units)})")
    number = float(match[1]) * factor
    if number > _MOST:
        raise ValueError(f"{value[:20]!r} is more than any machine has")
    return number


def parse_bytes(value: Any) -> int:
    """`"1.5GiB"` -> 1610612736. Raises ValueError without a known unit."""
    return round(_parse(value, _BYTES, "1GiB"))


def parse_seconds(value: Any) -> float:
    """`"100ms"` -> 0.1. Raises ValueError without a known unit."""
    return _parse(value, _SECONDS, "100ms")


def format_bytes(count: float) -> str:
    """1610612736 -> `"1.50 GiB"`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """0.0123 -> `"12.3 ms"`, 75 -> `"1m 15s"`."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"


ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+ ?[KMGT]?i?B$", "examples": ["1GiB"]}),
]
"""A plan field in bytes, written with its unit."""

Duration = Annotated[
    float,
    BeforeValidator(parse_seconds),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9.]+ ?(us|ms|s|min|h)$", "examples": ["100ms"]}),
]
"""A plan field in seconds, written with its unit."""
