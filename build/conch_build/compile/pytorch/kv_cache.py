"""`kv_cache_config`: how much memory the KV cache takes on each GPU, in which type, in which blocks."""

from __future__ import annotations

from typing import Any

from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.sizing import blocks_for

_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of a number, nvfp4's scale for sixteen of them included; others have two."""


def kv_cache_config(plan: Plan, info: ModelInfo, dtype: str) -> dict[str, Any]:
    """`dtype`: as `precision.gpu_kv_dtype` gives it. Raises PlanError for one that the LLM API has not."""
    if dtype == "int8":
        raise PlanError(
            "the LLM API has no KV cache in int8",
            where="quantization.kv_cache",
            fix="Set it to `fp8` or `auto`.",
        )
    cache = plan.engine.kv_cache
    return {
        "enable_block_reuse": cache.reuse,
        "tokens_per_block": cache.tokens_per_block,
        "dtype": dtype if dtype in _BYTES else "auto",
        **_size(plan, info, dtype),
    }


def _size(plan: Plan, info: ModelInfo, dtype: str) -> dict[str, int | float]:
    """As tokens where the plan gives a size; nothing where it says nothing: TensorRT-LLM takes most of what is free."""
    cache = plan.engine.kv_cache
    if cache.free_memory_fraction is not None:
        return {"free_gpu_memory_fraction": cache.free_memory_fraction}
    if cache.concurrency is not None:
        blocks = cache.concurrency * blocks_for(plan.engine.max_seq_len, cache.tokens_per_block)
        return {"max_tokens": blocks * cache.tokens_per_block}
    if "size" in cache.model_fields_set:
        blocks = int(cache.size / (bytes_per_token(plan, info, dtype) * cache.tokens_per_block))
        if not blocks:
            raise PlanError("does not hold one block", where="engine.kv_cache.size", fix="Give it more.")
        return {"max_tokens": blocks * cache.tokens_per_block}
    return {}


def bytes_per_token(plan: Plan, info: ModelInfo, dtype: str) -> float:
    """Of one token's keys and values on one GPU: its layers, and its share of the KV heads.

    A head is not cut; a latent vector is not even shared.
    """
    parallel = plan.engine.parallel
    layers = -(-info.num_layers // parallel.pipeline)
    numbers = 2 * -(-info.num_kv_heads // parallel.tensor) * info.head_dim
    if info.latent is not None:
        numbers = info.latent.kv_rank + info.latent.rope_head_dim
    return layers * numbers * _BYTES.get(dtype, 2.0)
