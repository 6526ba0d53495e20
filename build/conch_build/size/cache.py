"""Keys and values of a model: bytes a token, a block and a request, for every kind of attention. Pure arithmetic.

A layer caches, of each token, `2 x kv_heads x head_dim` numbers: multi-head attention has as many KV heads as heads,
grouped-query attention fewer (https://arxiv.org/abs/2305.13245), multi-query attention one
(https://arxiv.org/abs/1911.02150). Multi-head latent attention caches one vector and one rotated key for all heads
(https://arxiv.org/abs/2405.04434, section 2.1). A layer with a sliding window looks back no further
(https://arxiv.org/abs/2310.06825); whether its older pages are given back is the engine's choice. Memory is taken in
pages of some tokens, of which the last is part empty (https://arxiv.org/abs/2309.06180).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from conch_build.errors import InputError
from conch_build.gpu.weights import Split, kv_heads_per_gpu, stage_layers
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.sizing import U8_SCALE_BYTES, blocks_for

ELEMENT_BYTES = {"f32": 4.0, "bf16": 2.0, "fp16": 2.0, "u8": 1.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Of one cached number: with nvfp4's scale for sixteen of them, without u8's (a row's)."""

WHOLE = Split()

Pages = Literal["full", "window"]
"""What layers with a window keep: all pages, or those that the window reaches."""


@dataclass(frozen=True)
class LayerCache:
    token_bytes: float
    window: int = 0
    """Tokens looked back at; 0: all."""


@dataclass(frozen=True)
class Cache:
    """Of the layers of one model on one device."""

    layers: tuple[LayerCache, ...]
    tokens_per_block: int = 32

    @property
    def bytes_per_token(self) -> float:
        """Of a token in every layer."""
        return sum(layer.token_bytes for layer in self.layers)

    @property
    def block_bytes(self) -> float:
        return self.tokens_per_block * self.bytes_per_token

    @property
    def bytes_per_token_past_windows(self) -> float:
        """By which a request grows that is longer than every window, if pages behind them are given back."""
        return sum(layer.token_bytes for layer in self.layers if not layer.window)

    @property
    def window_bytes(self) -> float:
        """What the layers with windows hold of such a request, whole pages aside."""
        return sum(layer.window * layer.token_bytes for layer in self.layers)

    @property
    def has_windows(self) -> bool:
        return any(layer.window for layer in self.layers)

    def request_bytes(self, tokens: int, pages: Pages = "full") -> int:
        """Pages of one request of `tokens`."""
        total = 0.0
        for layer, count in Counter(self.layers).items():
            kept = min(tokens, layer.window) if layer.window and pages == "window" else tokens
            blocks = blocks_for(kept, self.tokens_per_block)
            total += count * blocks * self.tokens_per_block * layer.token_bytes
        return round(total)

    def requests_in(self, pool_bytes: int, tokens: int, pages: Pages = "full") -> int:
        """Requests of `tokens` that a pool holds, none sharing a block."""
        return max(pool_bytes, 0) // self.request_bytes(tokens, pages)


def short_dtype(dtype: str) -> str:
    """`bfloat16` -> `bf16`; the others are called as in ELEMENT_BYTES."""
    return {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)


def row_bytes(head_dim: int, dtype: str) -> float:
    """One token's key, or value, in one head. Raises InputError for a type that nobody caches in."""
    if dtype not in ELEMENT_BYTES:
        raise InputError(
            f"there is no KV cache in `{dtype}`", where="kv-dtype", fix=f"Known: {', '.join(ELEMENT_BYTES)}."
        )
    return head_dim * ELEMENT_BYTES[dtype] + (U8_SCALE_BYTES if dtype == "u8" else 0)


def plain_cache(
    layers: int, kv_heads: int, head_dim: int, dtype: str, tokens_per_block: int = 32, windows: Iterable[int] = ()
) -> Cache:
    """`2 x layers x kv_heads x row`; `windows`: each layer's, 0 for none."""
    token = 2 * kv_heads * row_bytes(head_dim, dtype)
    given = tuple(windows) or (0,) * layers
    return Cache(tuple(LayerCache(token, window) for window in given), tokens_per_block)


def latent_cache(layers: int, kv_rank: int, rope_dim: int, dtype: str, tokens_per_block: int = 32) -> Cache:
    """`layers x (kv_rank + rope_dim)` numbers, the same on every tensor rank."""
    token = row_bytes(kv_rank + rope_dim, dtype)
    return Cache((LayerCache(token),) * layers, tokens_per_block)


def cache_of(info: ModelInfo, dtype: str, tokens_per_block: int = 32, split: Split = WHOLE) -> Cache:
    """A model's cache on the GPU that holds most of its layers."""
    stage = stage_layers(info.num_layers, split.pipeline)[0]
    if info.latent is not None:
        return latent_cache(len(stage), info.latent.kv_rank, info.latent.rope_head_dim, dtype, tokens_per_block)
    windows = [info.windows[index] if info.windows else 0 for index in stage]
    heads = kv_heads_per_gpu(info.num_kv_heads, split.tensor)
    return plain_cache(len(stage), heads, info.head_dim, dtype, tokens_per_block, windows)


def pages_of(plan: Plan, info: ModelInfo) -> Pages:
    """Engines of TensorRT are told their windows and give older pages back; the LLM API keeps them all, unless its
    `max_attention_window` is set; so does the CPU engine."""
    told = plan.engine.llm_args.get("kv_cache_config")
    windowed = plan.engine.backend == "tensorrt" or (isinstance(told, dict) and told.get("max_attention_window"))
    return "window" if windowed and any(info.windows) else "full"


def attention_kind(info: ModelInfo) -> str:
    """`mla`, `mqa`, `gqa` or `mha`."""
    if info.latent is not None:
        return "mla"
    if info.num_kv_heads == info.num_attention_heads:
        return "mha"
    return "mqa" if info.num_kv_heads == 1 else "gqa"
