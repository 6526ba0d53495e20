"""Memory arithmetic: weights, KV cache and its blocks. Pure functions of numbers, no files and no plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

KvDtype = Literal["u8", "bf16", "f32"]

U8_SCALE_BYTES = 8
"""A u8 key or value row carries an f32 scale and an f32 zero point."""

CPU_TOKENS_PER_BLOCK = 32
"""Tokens of a KV block in OpenVINO's paged attention; its CPU kernel takes no other size."""

GROUP_SIZES = (128, 64, 32, 16)
"""Weights that may share an int4 scale, the preferred first."""

BITS_PER_WEIGHT = {"none": 16.0, "int8": 8.0, "int8_sq": 8.0, "int4_awq": 4.0, "fp8": 16.0}
"""Bits of one weight of a linear layer in a compiled CPU engine; fp8 has no CPU kernel and is widened."""


def cpu_kv_dtype(dtype: str) -> KvDtype:
    """What a plan's `quantization.kv_cache` means on a CPU: `auto`, and what a CPU lacks, is u8."""
    return "bf16" if dtype == "bf16" else "f32" if dtype == "f32" else "u8"


def kv_row_bytes(head_dim: int, dtype: KvDtype) -> int:
    """Bytes of one token's key (or value) in one KV head."""
    if dtype == "u8":
        return head_dim + U8_SCALE_BYTES
    return head_dim * {"bf16": 2, "f32": 4}[dtype]


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: KvDtype) -> int:
    """Bytes of one token's KV over all layers: key and value, `layers x kv_heads x row`."""
    return 2 * num_layers * num_kv_heads * kv_row_bytes(head_dim, dtype)


def blocks_for(tokens: int, tokens_per_block: int) -> int:
    """Blocks that hold `tokens`: the last one may be part empty."""
    return -(-tokens // tokens_per_block)


def kv_pool_blocks(size_bytes: int, tokens_per_block: int, bytes_per_token: int) -> int:
    """Whole blocks in a pool of `size_bytes`."""
    return size_bytes // (tokens_per_block * bytes_per_token)


def kv_pool_bytes_for(requests: int, tokens: int, tokens_per_block: int, block_bytes: int) -> int:
    """Bytes of a pool that holds so many requests of so many tokens each, none sharing a block."""
    return requests * blocks_for(tokens, tokens_per_block) * block_bytes


def group_sizes_for(widths: Iterable[int], sizes: Iterable[int] = GROUP_SIZES) -> list[int]:
    """The `sizes` that divide every width, in their order."""
    widths = list(widths)
    return [size for size in sizes if all(width % size == 0 for width in widths)]
