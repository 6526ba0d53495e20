"""A plan and its model, in bytes: weights, keys and values, what else lies in memory, and the limits of its GPU.

Gives one mapping with stable keys, as `conch size --json` prints it. Reads no file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from conch_build.compile.precision import gpu_kv_dtype
from conch_build.errors import InputError
from conch_build.gpu.cards import Gpu
from conch_build.gpu.memory import gpu_memory, split_of
from conch_build.gpu.storage import STORAGE, Storage, storage_of, stored_format
from conch_build.machine import free_memory_bytes, memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.size.cache import Cache, Pages, attention_kind, cache_of, pages_of, short_dtype
from conch_build.size.cpu import cpu_activation_bytes, cpu_cache, cpu_pool_bytes, cpu_weight_bytes
from conch_build.size.roofline import active_parameters, limits, machine_of
from conch_build.sizing import cpu_kv_dtype


@dataclass(frozen=True)
class Workload:
    """Requests of `tokens` each, `prompt` of them given, `requests` at once."""

    tokens: int
    prompt: int
    requests: int

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if number < 1:
                raise InputError(f"must be at least 1, not {number}", where=f"--{name}")
        if self.prompt > self.tokens:
            what = f"a prompt of {self.prompt:,} is longer than the request of {self.tokens:,} that it begins"
            raise InputError(what, where="--prompt", fix="`--tokens` counts prompt and answer together.")


def workload_of(plan: Plan, info: ModelInfo, tokens: int | None, prompt: int | None, requests: int | None) -> Workload:
    """What is not given is the plan's: its longest request, half of it prompt, as many as its batch holds.

    Raises InputError for a request that the model has no positions for.
    """
    tokens = plan.engine.max_seq_len if tokens is None else tokens
    if tokens > info.max_position_embeddings:
        what = f"{tokens:,} tokens are beyond the {info.max_position_embeddings:,} positions of the model"
        raise InputError(what, where="--tokens", fix=f"Give at most {info.max_position_embeddings}.")
    return Workload(
        tokens=tokens,
        prompt=max(1, tokens // 2) if prompt is None else prompt,
        requests=plan.engine.max_batch_size if requests is None else requests,
    )


def cache_report(cache: Cache, dtype: str, pages: Pages, tokens: int, requests: int) -> dict[str, Any]:
    """The KV cache of a workload. `pages`: what the engine keeps of layers with windows."""
    windows = {
        "bytes_per_token_past_windows": _whole(cache.bytes_per_token_past_windows),
        "window_bytes": _whole(cache.window_bytes),
        "bytes_a_request_full": cache.request_bytes(tokens, "full"),
        "bytes_a_request_window": cache.request_bytes(tokens, "window"),
    }
    return {
        "dtype": dtype,
        "bytes_per_token": _whole(cache.bytes_per_token),
        "tokens_per_block": cache.tokens_per_block,
        "block_bytes": _whole(cache.block_bytes),
        "pages": pages,
        "windows": windows if cache.has_windows else None,
        "request_tokens": tokens,
        "requests": requests,
        "blocks": requests * -(-tokens // cache.tokens_per_block),
        "bytes": requests * cache.request_bytes(tokens, pages),
    }


def size_report(
    plan: Plan, info: ModelInfo, gpu: Gpu | None, draft: ModelInfo | None, work: Workload
) -> dict[str, Any]:
    """`gpu`: None for the CPU engine."""
    report: dict[str, Any] = {"model": _model(info), "backend": plan.engine.backend, "format": format_of(plan, info)}
    if gpu is None:
        return report | _on_cpu(plan, info, draft, work)
    return report | _on_gpu(plan, info, gpu, draft, work)


def fleet_report(plan: Plan, info: ModelInfo, work: Workload) -> dict[str, Any]:
    """What is the same on every GPU: the model, and its cache on one that holds all of it."""
    dtype = short_dtype(gpu_kv_dtype(plan, info))
    cache = cache_of(info, dtype, plan.engine.kv_cache.tokens_per_block)
    kv = cache_report(cache, dtype, pages_of(plan, info), work.tokens, work.requests)
    return {"model": _model(info), "backend": plan.engine.backend, "format": format_of(plan, info), "kv": kv}


def format_of(plan: Plan, info: ModelInfo) -> str:
    """The weights' format: the checkpoint's own, where it comes quantized."""
    if info.quantization is None:
        return plan.quantization.format
    return stored_format(info.quantization) or "its own"


def _model(info: ModelInfo) -> dict[str, Any]:
    windows = [window for window in info.windows if window]
    return {
        "architecture": info.architecture,
        "parameters": info.parameters,
        "active_parameters": active_parameters(info),
        "embedding_parameters": info.embedding_parameters,
        "tied_embeddings": info.tied_embeddings,
        "layers": info.num_layers,
        "attention": attention_kind(info),
        "heads": info.num_attention_heads,
        "kv_heads": info.num_kv_heads,
        "head_dim": info.head_dim,
        "window": max(windows, default=None),
        "window_layers": len(windows),
        "experts": info.num_experts,
        "experts_per_token": info.experts_per_token,
    }


def _on_cpu(plan: Plan, info: ModelInfo, draft: ModelInfo | None, work: Workload) -> dict[str, Any]:
    cache = cpu_cache(plan, info)
    length = plan.engine.max_seq_len
    pool = cpu_pool_bytes(plan, cache, free_memory_bytes())
    block = cache.block_bytes + (cpu_cache(plan, draft).block_bytes if draft else 0)
    blocks = int(pool // block)
    parts = {
        "weights": cpu_weight_bytes(info, plan.quantization.format, length),
        "draft model": cpu_weight_bytes(draft, plan.quantization.format, length) if draft else 0,
        "KV cache": round(blocks * block),
        "activations": cpu_activation_bytes(plan, info),
    }
    tokens = blocks * cache.tokens_per_block
    return {
        "kv": cache_report(cache, cpu_kv_dtype(plan.quantization.kv_cache), "full", work.tokens, work.requests),
        "memory": {
            "total_bytes": memory_bytes(),
            "parts": {name: size for name, size in parts.items() if size},
            "used_bytes": sum(parts.values()) * plan.serving.replicas,
            "replicas": plan.serving.replicas,
            "kv_blocks": blocks,
            "kv_tokens": tokens,
            "requests": blocks // -(-work.tokens // cache.tokens_per_block),
        },
        "gpu": None,
        "limits": None,
    }


def _on_gpu(plan: Plan, info: ModelInfo, gpu: Gpu, draft: ModelInfo | None, work: Workload) -> dict[str, Any]:
    split, replicas = split_of(plan), plan.serving.replicas * plan.serving.triton.instances
    memory = gpu_memory(plan, info, gpu.memory_bytes, draft)
    dtype, pages = short_dtype(memory.kv_dtype), pages_of(plan, info)
    per_block = plan.engine.kv_cache.tokens_per_block
    held = cache_of(info, dtype, per_block, split)
    whole = cache_of(info, dtype, per_block)
    a_request = held.request_bytes(work.tokens, pages)
    if draft is not None:
        a_request += cache_of(draft, dtype, per_block, split).request_bytes(work.tokens, pages)
    form = format_of(plan, info)
    storage = storage_in(plan, info)
    bounds = limits(
        info,
        storage,
        machine_of(gpu, form, split.gpus, split.pipeline),
        held.bytes_per_token * split.gpus,
        prompt=work.prompt,
        context=work.tokens,
        batch=-(-work.requests // replicas),
    )
    return {
        "kv": cache_report(whole, dtype, pages, work.tokens, work.requests),
        "memory": {
            "total_bytes": memory.total_bytes,
            "parts": dict(memory.parts) | {"KV cache": memory.kv_cache_bytes},
            "used_bytes": memory.used_bytes + memory.kv_cache_bytes,
            "replicas": replicas,
            "kv_blocks": int(memory.kv_cache_bytes // (memory.kv_bytes_per_token * per_block)),
            "kv_tokens": memory.kv_tokens,
            "requests": memory.kv_cache_bytes // a_request if memory.kv_limit_bytes > 0 else 0,
        },
        "gpu": {
            "name": gpu.name,
            "label": gpu.label,
            "tensor": split.tensor,
            "pipeline": split.pipeline,
            "replicas": replicas,
            "gpus": split.gpus * replicas,
            "kv_bytes_per_token": held.bytes_per_token,
        },
        "limits": asdict(bounds) | {"request_tokens_s": bounds.request_tokens_s},
    }


def storage_in(plan: Plan, info: ModelInfo) -> Storage:
    """How linear layers are stored. Of a format that is not known here: in 16 bits, the most."""
    form = format_of(plan, info)
    size = plan.quantization.group_size
    return (
        storage_of(form, size if isinstance(size, int) and form == "int4_awq" else None)
        if form in STORAGE
        else Storage()
    )


def _whole(count: float) -> int | float:
    return int(count) if count == int(count) else count
