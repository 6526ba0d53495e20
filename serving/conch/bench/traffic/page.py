"""A run as one HTML file: its figures in a table, and charts in SVG. Loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from conch.bench.traffic.charts import cumulated, line_chart
from conch.bench.traffic.measures import Round, times

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b7083;--back:#fff;--grid:#dde3ea;--head:#f3f6f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf0;--soft:#9fb0c0;--back:#14191f;--grid:#2c3641;--head:#1c242d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1200px;margin:2rem auto;
padding:0 1rem}h1{margin:0}p{color:var(--soft)}figure{margin:0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:1.5rem}
svg{width:100%;height:auto;background:var(--back)}
svg text{font-size:11px;fill:var(--soft)}
svg .title{font-size:14px;font-weight:600;fill:var(--ink)}svg .grid{stroke:var(--grid)}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:var(--head)}
"""
Columns = Mapping[str, tuple[str, str]]
"""A column's title -> the figure and how it is written."""
_COLUMNS: Columns = {
    "tok/s": ("tokens_per_second", ".0f"),
    "in tok/s": ("input_tokens_per_second", ".0f"),
    "req/s": ("requests_per_second", ".2f"),
    **{f"TTFT {share}": (f"ttft_{share}_ms", ".1f") for share in ("p50", "p90", "p95", "p99")},
    **{f"ITL {share}": (f"itl_{share}_ms", ".1f") for share in ("p50", "p90", "p95", "p99")},
    **{f"TPOT {share}": (f"tpot_{share}_ms", ".1f") for share in ("p50", "p99")},
    **{f"E2E {share}": (f"e2e_{share}_ms", ".0f") for share in ("p50", "p90", "p95", "p99")},
    "good": ("good_share", ".0%"),
    "goodput/s": ("goodput_per_second", ".2f"),
    "prefix hits": ("prefix_hit_share", ".0%"),
    "drafts accepted": ("draft_acceptance", ".0%"),
    "J/token": ("joules_per_token", ".3f"),
    "$/1M tokens": ("usd_per_million_tokens", ".3f"),
    "of roofline": ("roofline_share", ".0%"),
    "generator CPU": ("generator_cpu_share", ".1%"),
}


def page(
    title: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], rounds: Mapping[str, Sequence[Round]]
) -> str:
    """`rounds`: those of each load."""
    return document(
        title, about, _table(rows) + _errors(rows), [*_over_loads(rows), *_spreads(rounds), _running(rounds)]
    )


def document(title: str, about: Mapping[str, Any], content: str, charts: Sequence[str]) -> str:
    """The whole file: what is told `about` the run, `content` as HTML, and those charts that are not empty."""
    facts = " · ".join(
        f"{escape(str(name))}: {escape(str(value))}" for name, value in about.items() if value is not None
    )
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts if chart)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f'<h1>{escape(title)}</h1><p>{facts}</p>{content}<div class="charts">{figures}</div></body></html>\n'
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = {name: how for name, how in _COLUMNS.items() if any(row.get(how[0]) is not None for row in rows)}
    head = "".join(f"<th>{escape(name)}</th>" for name in ("load", *shown))
    body = ""
    for row in rows:
        values = [row.get(key) for key, _ in shown.values()]
        cells = ["" if v is None else format(v, form) for v, (_, form) in zip(values, shown.values(), strict=True)]
        body += "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (row["load"], *cells)) + "</tr>"
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div><p>Times in ms.</p>'
    )


def _errors(rows: Sequence[Mapping[str, Any]]) -> str:
    told = [f"{row['load']}: {count} {kind}" for row in rows for kind, count in row["errors"].items()]
    return f"<p>Errors: {escape('; '.join(told))}</p>" if told else ""


def _over_loads(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    key = "concurrency" if rows[0]["concurrency"] is not None else "rate"
    if len(rows) < 2 or any(row[key] is None for row in rows):
        return []
    name = {"concurrency": "requests at once", "rate": "requests/s offered"}[key]

    def line(figure: str) -> list[tuple[float, float]]:
        return sorted((row[key], row[figure]) for row in rows if row[figure] is not None)

    requests = {"answered": line("requests_per_second"), "within the SLO": line("goodput_per_second")}
    charts = [
        line_chart("Throughput", name, "tokens/s", {"generated": line("tokens_per_second")}, log_x=True),
        line_chart("Requests", name, "requests/s", {n: points for n, points in requests.items() if points}, log_x=True),
    ]
    for title in ("ttft", "itl", "e2e"):
        lines = {share: line(f"{title}_{share}_ms") for share in ("p50", "p90", "p99")}
        charts.append(line_chart(f"{title.upper()} by load", name, "ms", lines, log_x=True))
    return charts


def _spreads(rounds: Mapping[str, Sequence[Round]]) -> list[str]:
    found = {load: times([record for one in some for record in one.records]) for load, some in rounds.items()}
    return [
        line_chart(f"{name.upper()} of all", "ms", "%", {load: cumulated(of[name]) for load, of in found.items()})
        for name in ("ttft", "itl", "e2e")
    ]


def _running(rounds: Mapping[str, Sequence[Round]]) -> str:
    """How many requests ran at each time of a load's last round."""
    lines = {}
    for load, some in rounds.items():
        records = some[-1].records
        running, steps = 0, []
        for when, change in sorted([(r.sent, 1) for r in records] + [(r.ended, -1) for r in records]):
            running += change
            steps.append((when, float(running)))
        lines[load] = steps[:: max(len(steps) // 400, 1)]
    return line_chart("Requests that run", "s", "requests", lines)
