"""The engine's counters as Triton metrics, under the names that upstream's dashboards know.

`samples` and `totals` are arithmetic over `EngineStats`; `EngineMetrics` keeps Triton's objects in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conch.engine import EngineStats

_KV = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS = "nv_trt_llm_request_metrics"
_ADAPTERS = "conch_engine_adapter_slots"
_SPECULATION = "conch_engine_speculation"
_COUNTERS = {
    "prompt_tokens": "Prompt tokens accepted",
    "generated_tokens": "Tokens generated",
    "prefix_hit_tokens": "Prompt tokens found in the KV cache",
    "draft_tokens": "Tokens guessed by speculation",
    "accepted_tokens": "Guessed tokens that were right",
    "draft_seconds": "Seconds spent guessing",
    "preemptions": "Requests set back because KV blocks ran out",
    "steps": "Engine steps",
    "step_seconds": "Seconds spent in engine steps",
    "adapter_loads": "LoRA adapters put into a slot",
    "adapter_evictions": "LoRA adapters that made room for another",
}
_FINISHED = "conch_engine_requests_total"
_TRANSFERS = {
    "kv_transfers": "KV blocks of a prompt that went to, or came from, another engine",
    "kv_transfer_bytes": "Bytes of them",
    "kv_transfer_seconds": "Seconds until they were here",
}


def samples(stats: EngineStats) -> dict[str, dict[str, float]]:
    """Gauges: family -> value of its own label -> value."""
    total = stats.kv_blocks_total
    return {
        _KV: {
            "max": total,
            "free": total - stats.kv_blocks_used,
            "used": stats.kv_blocks_used,
            "cached": stats.kv_blocks_cached,
            "tokens_per": stats.tokens_per_block,
            "fraction": stats.kv_blocks_used / total if total else 0.0,
        },
        _REQUESTS: {
            "active": stats.running + stats.waiting,
            "max": stats.max_batch_size,
            "scheduled": stats.running,
            "context": stats.prefilling,
            "waiting": stats.waiting,
        },
        _SPECULATION: {"active": float(stats.speculating)},
        _ADAPTERS: {
            "max": stats.adapters.slots,
            "used": stats.adapters.used,
            "requests_waiting": stats.adapters.waiting,
        },
    }


def totals(stats: EngineStats) -> dict[str, float]:
    """Counters: name without prefix and suffix -> value since the engine started."""
    adapters = {f"adapter_{name}": getattr(stats.adapters, name) for name in ("loads", "evictions")}
    return adapters | {name: getattr(stats, f"{name}_total") for name in _COUNTERS.keys() - adapters.keys()}


class EngineMetrics:
    """Triton's metric objects; `family` is `pb_utils.MetricFamily`."""

    def __init__(self, family: Any, labels: dict[str, str]) -> None:
        self._labels = labels
        self._gauges = {
            _KV: (family(_KV, "KV cache blocks", family.GAUGE), "kv_cache_block_type"),
            _REQUESTS: (family(_REQUESTS, "Requests in the engine", family.GAUGE), "request_type"),
            _SPECULATION: (family(_SPECULATION, "1 while speculation pays", family.GAUGE), "speculation_type"),
            _ADAPTERS: (family(_ADAPTERS, "Slots of LoRA adapters, and who waits for one", family.GAUGE), "slot_type"),
        }
        # A family must outlive its metrics, so both are kept.
        self._families = {
            name: family(f"conch_engine_{name}_total", text, family.COUNTER) for name, text in _COUNTERS.items()
        }
        self._counters = {name: made.Metric(labels=labels) for name, made in self._families.items()}
        self._finished = family(_FINISHED, "Requests by how they ended", family.COUNTER)
        self._transfers = {
            name: family(f"conch_engine_{name}_total", text, family.COUNTER) for name, text in _TRANSFERS.items()
        }
        self._metrics: dict[tuple[str, str], Any] = {}

    def update(self, stats: EngineStats, transfers: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> None:
        """Bring every metric up to date. `transfers`: counter -> kind -> value."""
        for name, values in samples(stats).items():
            family, label = self._gauges[name]
            for kind, value in values.items():
                self._metric(family, name, label, kind).set(value)
        for name, value in totals(stats).items():
            _raise_to(self._counters[name], value)
        for reason, count in stats.requests_total.items():
            _raise_to(self._metric(self._finished, _FINISHED, "finish_reason", reason), count)
        for name, kinds in transfers.items():
            for kind, value in kinds.items():
                _raise_to(self._metric(self._transfers[name], name, "kind", kind), value)

    def _metric(self, family: Any, name: str, label: str, kind: str) -> Any:
        key = (name, kind)
        if key not in self._metrics:
            self._metrics[key] = family.Metric(labels={**self._labels, label: kind})
        return self._metrics[key]


def _raise_to(counter: Any, value: float) -> None:
    difference = value - counter.value()
    if difference > 0:
        counter.increment(difference)
