"""What the plan says of a GPU's memory, as the C++ backend's parameters. Whether it fits is for `preflight`.

A target and its draft model on the same GPUs hold the same tokens, so they share the memory by what a token takes.
"""

from __future__ import annotations

import math

from conch_build.gpu.memory import kv_bytes_a_request, kv_bytes_a_token, split_of
from conch_build.gpu.sizing import DEFAULT_FRACTION, kv_pool_tokens
from conch_build.gpu.weights import adapter_bytes
from conch_build.pack.deployment import Deployment

HOST_BYTES = 1 << 30
"""Upstream's default for adapters on the host."""

_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Models of which every so-many-th layer looks back at everything; others have one window for all."""


def kv_tokens(deployment: Deployment) -> str | None:
    """Tokens that the KV cache holds at most; None leaves it to the fraction. `kv_cache.size` is that of one GPU."""
    engine = deployment.plan.engine
    cache = engine.kv_cache
    if cache.concurrency is not None:
        block_bytes = _token_bytes(deployment) * cache.tokens_per_block
        split = split_of(deployment.plan)
        a_request = sum(kv_bytes_a_request(deployment.plan, info, split) for info in deployment.infos)
        return str(math.ceil(round(cache.concurrency * a_request / block_bytes, 6)) * cache.tokens_per_block)
    if "size" not in cache.model_fields_set:
        return None
    return str(kv_pool_tokens(cache.size, _token_bytes(deployment), cache.tokens_per_block))


def kv_fraction(deployment: Deployment) -> str | None:
    """Set where the plan says it, and where two engines share what is left."""
    fraction = deployment.plan.engine.kv_cache.free_memory_fraction
    if fraction is None and (not deployment.drafts or kv_tokens(deployment) is not None):
        return None
    own = kv_bytes_a_token(deployment.plan, deployment.info, split_of(deployment.plan))
    return f"{(fraction or DEFAULT_FRACTION) * own / _token_bytes(deployment):.4g}"


def attention_windows(deployment: Deployment) -> str | None:
    """Tokens that the layers look back, one number for all or one a layer, repeated; None: everything."""
    window, longest = deployment.info.sliding_window, deployment.plan.engine.max_seq_len
    if window is None or window >= longest:
        return None
    every = _FULL_EVERY.get(deployment.info.model_type, 1)
    return ",".join([str(window)] * (every - 1) + [str(longest)]) if every > 1 else str(window)


def lora_host_bytes(deployment: Deployment) -> str | None:
    """Room for all adapters, each of the largest rank; None: upstream's is enough."""
    plan = deployment.plan
    needed = len(deployment.adapters) * adapter_bytes(deployment.info, plan.engine.lora.max_rank, split_of(plan))
    return str(needed) if needed > HOST_BYTES else None


def _token_bytes(deployment: Deployment) -> float:
    """One token's keys and values on one GPU, in every engine that is there."""
    plan, split = deployment.plan, split_of(deployment.plan)
    return sum(kv_bytes_a_token(plan, info, split) for info in deployment.infos)
