"""The engines' figures as their Tritons tell them, under vLLM's names: one family each, whoever has samples of it.

Figures of what does not answer are left out: old ones would mislead.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

_REQUESTS = 'nv_trt_llm_request_metrics{request_type="%s"}'
_KV = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s"}'
_WAITING = "vllm:num_requests_waiting"
_SLOTS = 'conch_engine_adapter_slots{slot_type="%s"}'

# Triton's sample -> ours and what it is; counters end in `_total`.
_NAMES = {
    _REQUESTS % "scheduled": ("vllm:num_requests_running", "Requests in the engine's batch"),
    _REQUESTS % "waiting": (_WAITING, "Requests that wait in the engine or for it; those in the gateway at engine 0"),
    _REQUESTS % "max": ("conch:max_requests_running", "Requests that the engine's batch can hold"),
    _KV % "fraction": ("vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1"),
    _KV % "max": ("conch:kv_blocks", "Blocks of the KV cache"),
    _KV % "used": ("conch:kv_blocks_used", "Blocks that requests hold"),
    _KV % "free": ("conch:kv_blocks_free", "Blocks that no request holds"),
    _KV % "cached": ("conch:kv_blocks_cached", "Blocks that are kept for prompts that start alike"),
    _SLOTS % "max": ("conch:adapter_slots", "Adapters that can be loaded at once"),
    _SLOTS % "used": ("conch:adapter_slots_used", "Adapters that are loaded"),
    _SLOTS % "requests_waiting": ("conch:adapter_requests_waiting", "Requests that wait for an adapter's slot"),
    "conch_engine_adapter_loads_total": ("conch:adapter_loads_total", "Adapters put into a slot"),
    "conch_engine_adapter_evictions_total": ("conch:adapter_evictions_total", "Adapters that made room for another"),
    'conch_engine_speculation{speculation_type="active"}': (
        "conch:speculation_active",
        "1 while guessing tokens pays",
    ),
    "conch_engine_draft_tokens_total": ("vllm:spec_decode_num_draft_tokens_total", "Tokens that were guessed"),
    "conch_engine_accepted_tokens_total": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "Guessed tokens that were right",
    ),
    "conch_engine_draft_seconds_total": ("conch:draft_seconds_total", "Seconds spent guessing"),
    "conch_engine_prompt_tokens_total": ("vllm:prefix_cache_queries_total", "Tokens of prompts sought in the KV cache"),
    "conch_engine_prefix_hit_tokens_total": ("vllm:prefix_cache_hits_total", "Tokens of prompts found in it"),
    "conch_engine_preemptions_total": ("vllm:num_preemptions_total", "Requests set back as blocks ran out"),
    "conch_engine_generated_tokens_total": ("conch:engine_generated_tokens_total", "Tokens that the engine made"),
    "conch_engine_steps_total": ("conch:engine_steps_total", "Steps of the engine"),
    "conch_engine_step_seconds_total": ("conch:engine_step_seconds_total", "Seconds in which the engine computed"),
}
_BLOCK_SIZE = _KV % "tokens_per"
_SAMPLE = re.compile(r"^(?P<name>[a-z_]+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.M)
_KIND = re.compile(r'(?:request_type|kv_cache_block_type|slot_type|speculation_type)="[a-z_]+"')
_LABELS = ("model_name", "engine")


@dataclass(frozen=True)
class Reading:
    """One engine's figures at one time, by our names; empty when its Triton did not answer."""

    model_name: str
    engine: str
    """Which of the model's servers, from 0 on."""
    figures: Mapping[str, float]
    block_tokens: int | None = None
    """Tokens of a block of its KV cache."""


@dataclass(frozen=True)
class Adapters:
    """A model's LoRA adapters, as its engine lists them, and how many can be loaded at once."""

    model_name: str
    slots: int
    listed: Sequence[Mapping[str, Any]]


def reading_of(triton: str, model_name: str, engine: str) -> Reading:
    """What Triton's exposition text says."""
    values: dict[str, float] = {}
    for sample in _SAMPLE.finditer(triton):
        kind = _KIND.search(sample["labels"])
        values[f"{sample['name']}{{{kind[0]}}}" if kind else sample["name"]] = float(sample["value"])
    figures = {ours: values[theirs] for theirs, (ours, _) in _NAMES.items() if theirs in values}
    block = values.get(_BLOCK_SIZE)
    return Reading(model_name, engine, figures, int(block) if block else None)


async def read_engine(http: httpx.AsyncClient, url: str, model_name: str, engine: str = "0") -> Reading:
    """The figures now, by a Triton's `http://host:port/metrics`."""
    try:
        response = await http.get(url, timeout=1.0)
        response.raise_for_status()
    except httpx.HTTPError:
        return Reading(model_name, engine, {})
    return reading_of(response.text, model_name, engine)


async def read_engines(
    http: httpx.AsyncClient, servers: Iterable[tuple[str, Mapping[str, str | None]]]
) -> list[Reading]:
    """Of every model (its name and its servers' metrics URLs by their numbers), all at once."""
    return await asyncio.gather(
        *(
            read_engine(http, url, model_name, index)
            for model_name, urls in servers
            for index, url in urls.items()
            if url is not None
        )
    )


def engine_families(readings: Sequence[Reading], queued: Mapping[str, int]) -> Iterator[Metric]:
    """The readings as families, without those that nobody has samples of.

    `queued`: a model's requests that the gateway has not yet let in. Who balances by what waits must see them.
    """
    for name, text in _NAMES.values():
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, text, labels=_LABELS)
        for reading in readings:
            if name in reading.figures:
                more = queued.get(reading.model_name, 0) if (name, reading.engine) == (_WAITING, "0") else 0
                family.add_metric([reading.model_name, reading.engine], reading.figures[name] + more)
        if family.samples:
            yield family
    info = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache's shape", labels=[*_LABELS, "block_size", "num_gpu_blocks"]
    )
    for reading in readings:
        if reading.block_tokens and (blocks := reading.figures.get("conch:kv_blocks")):
            info.add_metric([reading.model_name, reading.engine, str(reading.block_tokens), str(int(blocks))], 1)
    if info.samples:
        yield info


def adapter_family(models: Sequence[Adapters]) -> Iterator[Metric]:
    """Which adapters run and which wait, as gateways that route by adapter read it: the value is the time."""
    family = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters by what their requests do; the value is the time",
        labels=["model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    for model in models:
        running, waiting = (
            ",".join(str(adapter["name"]) for adapter in model.listed if adapter[key]) for key in ("running", "waiting")
        )
        family.add_metric([model.model_name, str(model.slots), running, waiting], time.time())
    if family.samples:
        yield family
