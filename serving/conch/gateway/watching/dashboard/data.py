"""What the dashboard shows, as JSON. Figures only: no text of requests, no addresses, no keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from conch.gateway.watching.dashboard.recorder import Finished, Recorder, percentile
from conch.gateway.watching.metrics.engine import Reading
from conch.gateway.watching.metrics.machine import Gpu, read_host
from conch_build.cost import usd_per_million

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_PHASES = ("ttft", "itl", "e2e", "queue")


def document(
    recorder: Recorder,
    recent: Sequence[Finished],
    present: Mapping[str, Mapping[str, int]],
    models: Sequence[str],
    readings: Sequence[Reading],
    gpus: Sequence[Gpu],
    *,
    state: str,
    since: float,
) -> dict[str, Any]:
    """All of it; the history from after `since` on, in seconds since 1970."""
    return {
        "version": version("conch"),
        "now": time.time(),
        "state": state,
        "models": [
            {
                "name": name,
                "running": present["running"].get(name, 0),
                "waiting": present["waiting"].get(name, 0),
                "engines": [_engine(reading) for reading in readings if reading.model_name == name],
            }
            for name in models
        ],
        "rows": rows(recent),
        "cost": _cost(recorder),
        "machine": _machine(recorder, gpus),
        "history": [asdict(point) for point in list(recorder.history) if point.at > since],
    }


def rows(recent: Sequence[Finished]) -> list[dict[str, Any]]:
    """The last minute by model and variant; times in seconds."""
    groups: dict[tuple[str, str], list[Finished]] = {}
    for finished in recent:
        groups.setdefault((finished.model, finished.variant), []).append(finished)
    return [_row(model, variant, group) for (model, variant), group in sorted(groups.items())]


def _row(model: str, variant: str, group: Sequence[Finished]) -> dict[str, Any]:
    prompt = sum(finished.prompt_tokens for finished in group)
    cached = sum(finished.cached_tokens for finished in group)
    generated = sum(finished.generated_tokens for finished in group)
    spent = [finished.usd for finished in group if finished.usd is not None]
    return {
        "model": model,
        "variant": variant,
        "requests": len(group),
        "failed": sum(finished.failed for finished in group),
        "cancelled": sum(finished.cancelled for finished in group),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "generated_tokens": generated,
        "usd_per_million_tokens": usd_per_million(sum(spent), prompt + generated) if spent else None,
        **{phase: _percentiles(group, phase) for phase in _PHASES},
    }


def _percentiles(group: Sequence[Finished], phase: str) -> dict[str, float | None]:
    values = sorted(value for finished in group if (value := getattr(finished, phase)) is not None)
    return {name: percentile(values, share) for name, share in _SHARES.items()}


def _engine(reading: Reading) -> dict[str, Any]:
    """Totals since the engine started; `answers` false: its Triton tells nothing now."""
    figures = reading.figures
    return {
        "engine": reading.engine,
        "answers": bool(figures),
        "running": figures.get("vllm:num_requests_running"),
        "waiting": figures.get("vllm:num_requests_waiting"),
        "kv_usage": figures.get("vllm:kv_cache_usage_perc"),
        "kv_blocks": figures.get("conch:kv_blocks"),
        "preemptions": figures.get("vllm:num_preemptions_total"),
        "prefix_hits": _share(figures, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        "accepted": _share(
            figures, "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"
        ),
    }


def _share(figures: Mapping[str, float], part: str, whole: str) -> float | None:
    return figures[part] / figures[whole] if figures.get(whole) and part in figures else None


def _cost(recorder: Recorder) -> dict[str, Any] | None:
    """Since the start; None where the plan tells no price."""
    if not recorder.priced_tokens:
        return None
    per_million = usd_per_million(recorder.usd, recorder.priced_tokens)
    return {"usd": recorder.usd, "tokens": recorder.priced_tokens, "usd_per_million_tokens": per_million}


def _machine(recorder: Recorder, gpus: Sequence[Gpu]) -> dict[str, Any]:
    host = read_host()
    return {
        "cpu": recorder.history[-1].cpu if recorder.history else None,
        "memory_bytes": host.memory_bytes if host else None,
        "used_bytes": host.memory_bytes - host.available_bytes if host else None,
        "gpus": [
            {
                "name": gpu.name,
                "utilization": gpu.utilization,
                "used_bytes": gpu.used_bytes,
                "memory_bytes": gpu.memory_bytes,
            }
            for gpu in gpus
        ],
    }
