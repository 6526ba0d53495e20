"""What a compiled CPU engine takes: its weights as they are stored, and its pool of KV blocks. Pure arithmetic."""

from __future__ import annotations

from conch_build.families import layers
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.size.cache import Cache, cache_of
from conch_build.sizing import BITS_PER_WEIGHT, cpu_kv_dtype, group_sizes_for

_SCALE_BYTES = 4
_WITH_8_BIT_HEAD = ("int8", "int4_awq")
"""Formats whose head is stored in 8 bits beside the embedding."""


def cpu_weight_bytes(info: ModelInfo, form: str, max_seq_len: int) -> int:
    """Constants of the compiled graph: linear layers in the format with f32 scales of rows (of groups, in 4 bits), the
    embedding in 16 bits, an 8-bit head beside it, and the table of rotations. Of a checkpoint that comes quantized,
    what its files hold."""
    if info.quantization is not None:
        return info.weight_bytes
    bits = BITS_PER_WEIGHT.get(form, 16.0)
    table = info.vocab_size * info.hidden_size
    head = (
        table + _SCALE_BYTES * info.vocab_size if form in _WITH_8_BIT_HEAD else 2 * table * (not info.tied_embeddings)
    )
    total = 2 * table + head + _SCALE_BYTES * max_seq_len * info.head_dim
    for layer in layers(info):
        for shape in layer.values():
            if len(shape) == 1:
                total += _SCALE_BYTES * shape[0] if bits < 16 else 2 * shape[0]
                continue
            # A width that no size of group divides cannot be compiled: its row is then taken as one.
            size = next(iter(group_sizes_for(shape[1:])), shape[1]) if bits == 4 else shape[1]
            groups = shape[1] // size
            total += round(shape[0] * shape[1] * bits / 8) + (_SCALE_BYTES * shape[0] * groups if bits < 16 else 0)
    return total


def cpu_cache(plan: Plan, info: ModelInfo) -> Cache:
    """Layers with windows keep all pages, too."""
    return cache_of(info, cpu_kv_dtype(plan.quantization.kv_cache), plan.engine.kv_cache.tokens_per_block)


def cpu_pool_bytes(plan: Plan, cache: Cache, free_memory_bytes: int) -> int:
    """What the plan gives its KV cache, by whichever of its keys."""
    asked = plan.engine.kv_cache
    if asked.concurrency is not None:
        return asked.concurrency * cache.request_bytes(plan.engine.max_seq_len)
    if asked.free_memory_fraction is not None:
        return int(asked.free_memory_fraction * free_memory_bytes)
    return asked.size


def cpu_activation_bytes(plan: Plan, info: ModelInfo) -> int:
    """An estimate: a layer's tensors in f32 for a step of `max_num_tokens` (layers use the same memory in turn), and
    the logits of every request and of each of its guesses."""
    engine = plan.engine
    queries = info.num_attention_heads * info.head_dim
    width = 4 * info.hidden_size + 2 * info.intermediate_size + queries + 2 * info.num_kv_heads * info.head_dim
    guesses = engine.speculation.max_draft_len if engine.speculation.method != "none" else 0
    return 4 * (engine.max_num_tokens * width + engine.max_batch_size * (1 + guesses) * info.vocab_size)
