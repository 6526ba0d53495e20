"""`kv_cache_config`: how much memory the KV cache takes on each GPU, in which type, in which blocks."""

from __future__ import annotations

from typing import Any

from conch_build.errors import PlanError
from conch_build.gpu.memory import kv_bytes_a_token
from conch_build.gpu.weights import Split
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.sizing import blocks_for

_NAMED = ("fp8", "nvfp4")
"""Types that are asked for by their name; the others are those of the activations."""


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
        "dtype": dtype if dtype in _NAMED else "auto",
        **_size(plan, info),
    }


def _size(plan: Plan, info: ModelInfo) -> dict[str, int | float]:
    """As tokens where the plan gives a size; nothing where it says nothing: TensorRT-LLM takes most of what is free."""
    cache = plan.engine.kv_cache
    if cache.free_memory_fraction is not None:
        return {"free_gpu_memory_fraction": cache.free_memory_fraction}
    if cache.concurrency is not None:
        blocks = cache.concurrency * blocks_for(plan.engine.max_seq_len, cache.tokens_per_block)
        return {"max_tokens": blocks * cache.tokens_per_block}
    if "size" in cache.model_fields_set:
        blocks = int(cache.size / (_bytes_a_token(plan, info) * cache.tokens_per_block))
        if not blocks:
            raise PlanError("does not hold one block", where="engine.kv_cache.size", fix="Give it more.")
        return {"max_tokens": blocks * cache.tokens_per_block}
    return {}


def _bytes_a_token(plan: Plan, info: ModelInfo) -> float:
    parallel = plan.engine.parallel
    return kv_bytes_a_token(plan, info, Split(parallel.tensor, parallel.pipeline, parallel.expert))
