"""The rows as a table for a terminal, and as one HTML file with charts that loads nothing from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from conch.bench.traffic.charts import bar_chart
from conch.bench.traffic.page import document
from conch_build.console import table
from conch_build.units import format_bytes

Row = Mapping[str, Any]
_COLUMNS = ("rung", "tok/s", "over the one below", "over the first", "E2E p99", "gap p99", "memory", "perplexity")
_PRICE = "$/1M tokens"


def ladder_text(rows: Sequence[Row]) -> str:
    priced = any(row["usd_per_million_generated"] is not None for row in rows)
    skipped = [f"{row['rung']} cannot run here: {row['skipped']}" for row in rows if row["skipped"]]
    return "\n".join([table(_headers(priced), _cells(rows, priced)), *skipped])


def ladder_page(title: str, about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    priced = any(row["usd_per_million_generated"] is not None for row in rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in _headers(priced))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in _cells(rows, priced)
    )
    skipped = "".join(
        f"<p>{escape(row['title'])} cannot run here: {escape(row['skipped'])}</p>" for row in rows if row["skipped"]
    )
    content = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{skipped}'
    charts = [
        _bars("Throughput", "tokens/s", rows, "tokens_per_second"),
        _bars("A request from end to end, p99", "ms", rows, "e2e_p99_ms"),
        _bars("Between two tokens, p99", "ms", rows, "gap_p99_ms"),
        _bars("Most memory of the process", "MiB", rows, "peak_bytes", 1 / (1 << 20)),
        _bars("Cost of generated tokens", "USD a million", rows, "usd_per_million_generated"),
    ]
    return document(title, about, content, charts)


def _headers(priced: bool) -> tuple[str, ...]:
    return (*_COLUMNS, _PRICE) if priced else _COLUMNS


def _cells(rows: Sequence[Row], priced: bool) -> list[list[str]]:
    return [_line(row, priced, rows[number - 1] if number else None) for number, row in enumerate(rows)]


def _line(row: Row, priced: bool, before: Row | None) -> list[str]:
    if row["skipped"]:
        return [row["title"], "-", *[""] * (len(_headers(priced)) - 2)]
    beside = "" if row["over"] is None or (before and row["over"] == before["rung"]) else f" {row['over']}"
    usd = row["usd_per_million_generated"]
    quality = row["perplexity_ratio"]
    return [
        row["title"],
        f"{row['tokens_per_second']:.1f}",
        _factor(row, "factor") + beside,
        _factor(row, "factor_over_baseline"),
        "" if row["e2e_p99_ms"] is None else f"{row['e2e_p99_ms']:,.0f} ms",
        f"{row['gap_p99_ms']:,.0f} ms",
        format_bytes(row["peak_bytes"]),
        "" if quality is None else f"{quality - 1:+.1%}",
        *([f"{usd:.2f}"] if priced else []),
    ]


def _factor(row: Row, name: str) -> str:
    factor, interval = row[name], row[f"{name}_interval"]
    if factor is None:
        return ""
    reach = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{factor:.2f}{reach}"


def _bars(title: str, unit: str, rows: Sequence[Row], figure: str, scale: float = 1.0) -> str:
    return bar_chart(title, unit, {row["title"]: row[figure] * scale for row in rows if row[figure] is not None})
