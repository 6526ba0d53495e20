"""Prometheus metrics in vLLM's vocabulary: the gateway's own, and the engine's gauges as Triton gives them.

Knows nothing of requests' contents.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

# Bounds in seconds and in tokens.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_BETWEEN = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2.5)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
REASONS = ("stop", "length", "abort", "error")

# Triton's sample -> ours, with its kind and help.
_ENGINE = {
    'nv_trt_llm_request_metrics{request_type="scheduled"}': ("vllm:num_requests_running", "gauge"),
    'nv_trt_llm_request_metrics{request_type="waiting"}': ("vllm:num_requests_waiting", "gauge"),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}': (
        "vllm:kv_cache_usage_perc",
        "gauge",
    ),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}': ("conch:kv_blocks_total", "gauge"),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"}': ("conch:kv_blocks_used", "gauge"),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free"}': ("conch:kv_blocks_free", "gauge"),
    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="cached"}': ("conch:kv_blocks_cached", "gauge"),
    'conch_engine_adapter_slots{slot_type="max"}': ("conch:adapter_slots", "gauge"),
    'conch_engine_adapter_slots{slot_type="used"}': ("conch:adapter_slots_used", "gauge"),
    'conch_engine_adapter_slots{slot_type="requests_waiting"}': ("conch:adapter_requests_waiting", "gauge"),
    "conch_engine_adapter_loads_total": ("conch:adapter_loads_total", "counter"),
    "conch_engine_adapter_evictions_total": ("conch:adapter_evictions_total", "counter"),
    'conch_engine_speculation{speculation_type="active"}': ("conch:speculation_active", "gauge"),
    "conch_engine_draft_tokens_total": ("vllm:spec_decode_num_draft_tokens_total", "counter"),
    "conch_engine_accepted_tokens_total": ("vllm:spec_decode_num_accepted_tokens_total", "counter"),
    "conch_engine_draft_seconds_total": ("conch:draft_seconds_total", "counter"),
    "conch_engine_prompt_tokens_total": ("vllm:prefix_cache_queries_total", "counter"),
    "conch_engine_prefix_hit_tokens_total": ("vllm:prefix_cache_hits_total", "counter"),
    "conch_engine_preemptions_total": ("vllm:num_preemptions_total", "counter"),
}
_SAMPLE = re.compile(r"^(?P<name>[a-z_]+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.M)
_KIND = re.compile(r'(?:request_type|kv_cache_block_type|slot_type|speculation_type)="[a-z_]+"')


class Metrics:
    """The gateway's own counters and histograms, each with a child a model."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["model_name", *labels], registry=self.registry)

        self._first_token = histogram(
            "vllm:time_to_first_token_seconds",
            "From a request to its first token, of streamed answers",
            _FIRST,
        )
        self._between_tokens = histogram("vllm:inter_token_latency_seconds", "From one token to the next", _BETWEEN)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From a request to the end of its answer", _WHOLE)
        self._prompt_size = histogram("vllm:request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._answer_size = histogram("vllm:request_generation_tokens", "Tokens of an answer", _TOKENS)
        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of all prompts")
        self._generated_tokens = counter("vllm:generation_tokens", "Tokens of all answers")
        self._ended = counter(
            "vllm:request_success",
            "Requests by how they ended; abort: the client went away",
            "finished_reason",
        )

    def of(self, model_name: str) -> ModelMetrics:
        """A model's children, which are there from now on, at zero."""
        return ModelMetrics(
            self._first_token.labels(model_name),
            self._between_tokens.labels(model_name),
            self._whole.labels(model_name),
            self._prompt_size.labels(model_name),
            self._answer_size.labels(model_name),
            self._prompt_tokens.labels(model_name),
            self._generated_tokens.labels(model_name),
            {reason: self._ended.labels(model_name, reason) for reason in REASONS},
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)


@dataclass(frozen=True)
class ModelMetrics:
    first_token: Histogram
    between_tokens: Histogram
    whole: Histogram
    prompt_size: Histogram
    answer_size: Histogram
    prompt_tokens: Counter
    generated_tokens: Counter
    ended: Mapping[str, Counter]


class Watch:
    """One answer's clock: told of its tokens and of its end, it keeps the metrics."""

    __slots__ = ("_last", "_metrics", "_on_first", "_prompt_tokens", "_start", "_streaming", "_tokens")

    def __init__(
        self, metrics: ModelMetrics, prompt_tokens: int, *, streaming: bool, on_first: Callable[[], None]
    ) -> None:
        self._metrics = metrics
        self._on_first = on_first
        self._prompt_tokens = prompt_tokens
        self._streaming = streaming
        self._tokens = 0
        self._start = self._last = time.perf_counter()

    def tokens(self, count: int) -> None:
        """That many tokens have come at once."""
        now = time.perf_counter()
        if not self._tokens:
            self._on_first()
        if self._streaming and not self._tokens:
            self._metrics.first_token.observe(now - self._last)
        elif self._streaming:
            for _ in range(count):
                self._metrics.between_tokens.observe((now - self._last) / count)
        self._last = now
        self._tokens += count

    def end(self, reason: str) -> None:
        """The answer has ended, one of `REASONS`."""
        metrics = self._metrics
        metrics.whole.observe(time.perf_counter() - self._start)
        metrics.prompt_size.observe(self._prompt_tokens)
        metrics.answer_size.observe(self._tokens)
        metrics.prompt_tokens.inc(self._prompt_tokens)
        metrics.generated_tokens.inc(self._tokens)
        metrics.ended[reason].inc()


def engine_samples(triton: str, model_name: str) -> Iterator[str]:
    """Lines of exposition text for the engine, from Triton's own."""
    for sample in _SAMPLE.finditer(triton):
        kind = _KIND.search(sample["labels"])
        known = _ENGINE.get(f"{sample['name']}{{{kind[0]}}}" if kind else sample["name"])
        if known:
            name, family = known
            yield f"# TYPE {name} {family}"
            yield f'{name}{{model_name="{model_name}"}} {sample["value"]}'


def adapter_info(adapters: Sequence[Mapping[str, Any]], slots: int) -> str:
    """Which adapters run and which wait, as gateways that route by adapter read it: the value is the time."""
    running, waiting = (",".join(a["name"] for a in adapters if a[key]) for key in ("running", "waiting"))
    labels = f'max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{{{labels}}} {time.time()}\n"


async def read_engine(client: httpx.AsyncClient, url: str, model_name: str) -> str:
    """The engine's samples now; nothing when Triton does not answer: old figures would mislead."""
    try:
        response = await client.get(url, timeout=1.0)
        response.raise_for_status()
    except httpx.HTTPError:
        return ""
    return "".join(f"{line}\n" for line in engine_samples(response.text, model_name))
