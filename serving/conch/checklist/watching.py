"""Alert rules for Prometheus and a dashboard for Grafana: whether they read, fit the SLO, and ask for what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

import conch
from conch.checklist.points import Point, seen, unseen
from conch_build.plan import Slo

SHIPPED = Path(conch.__file__).parents[1] / "monitoring"
"""In a checkout of Conch; a wheel does not carry it."""
_METRIC = re.compile(r"\b(?:vllm|conch):\w+")
_ABOVE = re.compile(r"> *([0-9.]+)\s*$")
_LATENCIES = {"ttft_p95": "vllm:time_to_first_token_seconds", "itl_p95": "vllm:inter_token_latency_seconds"}
_GPUS_OR_ADAPTERS = re.compile(r"conch:gpu_|vllm:lora_|conch:lora_")
"""Told only where there are some."""


def watching(slo: Slo, alerts: Path | None, dashboard: Path | None, told: Collection[str]) -> Iterator[Point]:
    """`told`: names of the samples of the running gateway; none where it was not asked."""
    yield from _checked("watch.alerts", alerts or SHIPPED / "alerts.yml", "--alerts", _rules, told)
    yield from _fitting(slo, alerts or SHIPPED / "alerts.yml")
    yield from _checked("watch.dashboard", dashboard or SHIPPED / "grafana.json", "--dashboard", _panels, told)


def _checked(
    id: str, path: Path, option: str, read: Callable[[str], list[str]], told: Collection[str]
) -> Iterator[Point]:
    fix = f"Name yours with {option}; Conch's own is in `serving/monitoring`."
    if not path.is_file():
        yield unseen(id, f"no file {path}", fix)
        return
    try:
        expressions = read(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, yaml.YAMLError):
        yield seen(id, False, f"{path.name} does not read", fix)
        return
    names = {name for expression in expressions for name in _METRIC.findall(expression)}
    lacking = sorted(name for name in names - set(told) if not _GPUS_OR_ADAPTERS.match(name)) if told else []
    if lacking or not names:
        what = f"{path.name} asks for what the gateway does not tell: {', '.join(lacking) or 'nothing of it'}"
        yield seen(id, False, what, fix)
    else:
        what = f"{path.name}: {len(expressions)} expressions of {len(names)} metrics"
        yield seen(id, True, what + (", all of them told" if told else ""))


def _fitting(slo: Slo, path: Path) -> Iterator[Point]:
    """Whether a breach of the SLO raises an alert."""
    limits = {name: limit for name in _LATENCIES if (limit := getattr(slo, name)) is not None}
    try:
        expressions = _rules(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return  # told above
    late = []
    for name, limit in limits.items():
        bounds = [
            float(found[1])
            for expression in expressions
            if _LATENCIES[name] in expression and (found := _ABOVE.search(expression))
        ]
        if not bounds or min(bounds) > limit:
            late.append(
                f"slo.{name} is {limit:g} s, and " + (f"it alerts above {min(bounds):g} s" if bounds else "none")
            )
    if limits:
        what = "; ".join(late) or "a breach of the SLO raises an alert"
        yield seen(
            "watch.slo", not late, what, f"Lower the bounds in a copy of {path.name}, and name it with --alerts."
        )


def _rules(text: str) -> list[str]:
    return [rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def _panels(text: str) -> list[str]:
    panels: list[dict[str, Any]] = json.loads(text)["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]
