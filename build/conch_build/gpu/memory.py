"""What a plan needs of each GPU, part by part, and what is left for the KV cache there.

The fullest GPU counts. Arithmetic is `gpu_weights`' and `gpu_sizing`'s; here is which numbers of the plan go in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch_build.compile.precision import gpu_kv_dtype, is_calibrated
from conch_build.compile.tensorrt.adapters import READER
from conch_build.gpu.sizing import (
    CONTEXT_BYTES,
    DEFAULT_FRACTION,
    WORKSPACE_BYTES,
    activation_bytes,
    gpu_kv_bytes_per_token,
    kv_pool_tokens,
    latent_kv_bytes_per_token,
    logits_bytes,
    nccl_bytes,
)
from conch_build.gpu.storage import STORAGE, Storage, storage_of, stored_format
from conch_build.gpu.weights import Split, adapter_bytes, kv_heads_per_gpu, stage_layers, weight_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.size.cache import cache_of, pages_of, short_dtype


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on one GPU of `total_bytes`; `parts`: everything but the KV cache."""

    total_bytes: int
    parts: Mapping[str, int]
    kv_dtype: str
    """As `precision.gpu_kv_dtype` gives it."""
    kv_bytes_per_token: float
    kv_limit_bytes: int
    """What the KV cache may take: the plan's fraction of what the parts leave. Below 0: they do not fit."""
    kv_wanted_bytes: int | None
    """What the plan asks for by size or by number of requests; None: all that it may take."""
    tokens_per_block: int
    request_tokens: int
    """Of the longest request."""
    request_bytes: int
    """Its pages, in every model; behind a window only where the engine keeps them."""

    @property
    def used_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def kv_cache_bytes(self) -> int:
        limit = max(self.kv_limit_bytes, 0)
        return limit if self.kv_wanted_bytes is None else min(limit, self.kv_wanted_bytes)

    @property
    def kv_tokens(self) -> int:
        return kv_pool_tokens(self.kv_cache_bytes, self.kv_bytes_per_token, self.tokens_per_block)

    @property
    def requests(self) -> int:
        """Requests of the longest length at once."""
        return self.kv_cache_bytes // self.request_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "total_bytes": self.total_bytes,
            "parts": dict(self.parts),
            "kv_cache_bytes": self.kv_cache_bytes,
            "kv_dtype": self.kv_dtype,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_tokens": self.kv_tokens,
            "requests_of_max_seq_len": self.requests,
            "free_bytes": self.total_bytes - self.used_bytes - self.kv_cache_bytes,
        }


def gpu_memory(plan: Plan, info: ModelInfo, total_bytes: int, draft: ModelInfo | None = None) -> GpuMemory:
    """The memory of each GPU that serves `plan`. `draft`: the draft model beside it.

    Raises PlanError for a KV cache in a type that no GPU has.
    """
    engine, split = plan.engine, split_of(plan)
    parts = {
        "weights": model_bytes(plan, info, split),
        "activations": _activations(plan, info, split),
        "logits": _logits(plan, info),
        "workspace": WORKSPACE_BYTES[engine.backend],
        "CUDA context": CONTEXT_BYTES,
        "NCCL": nccl_bytes(split.gpus),
        "adapters": _adapters(plan, info, split),
        "draft model": model_bytes(plan, draft, split) + _activations(plan, draft, split) if draft else 0,
    }
    a_token = kv_bytes_a_token(plan, info, split)
    if draft is not None:
        a_token += kv_bytes_a_token(plan, draft, split)
    a_request = kv_bytes_a_request(plan, info, split) + (kv_bytes_a_request(plan, draft, split) if draft else 0)
    cache = engine.kv_cache
    fraction = cache.free_memory_fraction or DEFAULT_FRACTION
    return GpuMemory(
        total_bytes=total_bytes,
        parts={name: size for name, size in parts.items() if size},
        kv_dtype=gpu_kv_dtype(plan, info),
        kv_bytes_per_token=a_token,
        kv_limit_bytes=int(fraction * (total_bytes - sum(parts.values()))),
        kv_wanted_bytes=_wanted(plan, a_request),
        tokens_per_block=cache.tokens_per_block,
        request_tokens=engine.max_seq_len,
        request_bytes=a_request,
    )


def split_of(plan: Plan) -> Split:
    """How the model of `plan` is spread; of disaggregated workers, those of the group with the fewest GPUs."""
    parallel, disaggregated = plan.engine.parallel, plan.serving.disaggregated
    if disaggregated is None:
        return Split(parallel.tensor, parallel.pipeline, parallel.expert)
    group = min(disaggregated.context, disaggregated.generation, key=lambda workers: workers.tensor * workers.pipeline)
    return Split(group.tensor, group.pipeline, parallel.expert)


def model_bytes(plan: Plan, info: ModelInfo, split: Split) -> int:
    """Weights of a model on one GPU, in the plan's format or the one that it comes in."""
    storage = _storage(plan, info)
    if storage is None:  # a format of its own: what the files hold, evenly
        return -(-info.weight_bytes // split.gpus)
    engines = plan.engine.backend == "tensorrt"
    # Converters leave the embedding whole, ModelOpt cuts it.
    whole = engines and not is_calibrated(plan, info)
    return weight_bytes(info, storage, split, whole_embedding=whole, shared=not engines).total


def kv_bytes_a_token(plan: Plan, info: ModelInfo, split: Split) -> float:
    """KV cache of one token on one GPU."""
    dtype = gpu_kv_dtype(plan, info)
    layers = max(map(len, stage_layers(info.num_layers, split.pipeline)))
    if info.latent is not None:
        return latent_kv_bytes_per_token(layers, info.latent.kv_rank, info.latent.rope_head_dim, dtype)
    return gpu_kv_bytes_per_token(layers, kv_heads_per_gpu(info.num_kv_heads, split.tensor), info.head_dim, dtype)


def kv_bytes_a_request(plan: Plan, info: ModelInfo, split: Split) -> int:
    """KV cache of the longest request on one GPU, in whole pages."""
    engine = plan.engine
    cache = cache_of(info, short_dtype(gpu_kv_dtype(plan, info)), engine.kv_cache.tokens_per_block, split)
    return cache.request_bytes(engine.max_seq_len, pages_of(plan, info))


def _adapters(plan: Plan, info: ModelInfo, split: Split) -> int:
    """All that may be loaded at once, at the largest rank; on every layer, where the plan does not say which."""
    lora = plan.engine.lora
    if not (lora.adapters or lora.target_modules):
        return 0
    named = lora.target_modules
    projections = None if named is None else {layer for layer, module in READER.modules.items() if module in named}
    return lora.max_loaded * adapter_bytes(info, lora.max_rank, split, projections)


def _storage(plan: Plan, info: ModelInfo) -> Storage | None:
    if info.quantization is not None:
        form = stored_format(info.quantization)
        return STORAGE[form] if form else None
    asked = plan.quantization.group_size
    return storage_of(
        plan.quantization.format, None if asked == "auto" or plan.quantization.format == "nvfp4" else asked
    )


def _activations(plan: Plan, info: ModelInfo, split: Split) -> int:
    width = max(info.hidden_size, info.num_attention_heads * info.head_dim)
    return activation_bytes(plan.engine.max_num_tokens, width, split.tensor, experts=bool(info.num_experts))


def _logits(plan: Plan, info: ModelInfo) -> int:
    engine = plan.engine
    guesses = engine.speculation.max_draft_len if engine.speculation.method != "none" else 0
    kept = engine.build_args.get("gather_context_logits") or engine.llm_args.get("gather_context_logits")
    context_rows = engine.max_num_tokens if kept is True else 0
    return logits_bytes(engine.max_batch_size * (1 + guesses), info.vocab_size, context_rows=context_rows)


def _wanted(plan: Plan, a_request: int) -> int | None:
    cache = plan.engine.kv_cache
    if cache.concurrency is not None:
        return cache.concurrency * a_request
    return cache.size if "size" in cache.model_fields_set else None
