"""Memory of a GPU that serves, beside the weights: KV cache, activations, logits, what CUDA itself takes.

Pure functions of numbers. The KV cache is exact. The others are estimates, each with its source: TensorRT-LLM plans
activations when an engine is built, and its PyTorch backend measures them by a trial run; neither can be had here.
"""

from __future__ import annotations

_MIB, _GIB = 1 << 20, 1 << 30

KV_ELEMENT_BYTES = {"fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of one cached number, nvfp4's scale for sixteen of them included; in other types two."""

DEFAULT_FRACTION = 0.9
"""`free_gpu_memory_fraction` of both backends."""

CONTEXT_BYTES = 551 * _MIB
"""CUDA's context, its kernels and cuBLAS in one process. Observed on H100 (ai-dynamo/aiconfigurator, systems/*.yaml,
which takes 3.5 GiB in the place of this and WORKSPACE_BYTES to be safe)."""

WORKSPACE_BYTES = {"tensorrt": 1 * _GIB, "pytorch": 2 * _GIB}
"""Attention's and cuBLAS' scratch memory, decoder buffers; with PyTorch also CUDA graphs and what its allocator cannot
use again. An estimate within those 3.5 GiB."""

_NCCL_BYTES = ((1, 0), (2, 342 * _MIB))
_NCCL_BYTES_BEYOND = 392 * _MIB

_SAMPLING_COPIES = 3
"""Logits, the probabilities made of them, and those in order: what top-p sampling reads and writes, in f32."""

_LEAST_ACTIVATIONS = 70 * _MIB


def gpu_kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str) -> float:
    """One token's keys and values on one GPU: `2 x layers x kv_heads x head_dim x bytes`, of that GPU's layers and
    heads (https://nvidia.github.io/TensorRT-LLM/reference/memory.html)."""
    return 2 * layers * kv_heads * head_dim * KV_ELEMENT_BYTES.get(dtype, 2.0)


def latent_kv_bytes_per_token(layers: int, kv_rank: int, rope_head_dim: int, dtype: str) -> float:
    """The same for multi-head latent attention: one vector and one rotated key, whole on every tensor rank
    (https://arxiv.org/abs/2405.04434, section 2.1)."""
    return layers * (kv_rank + rope_head_dim) * KV_ELEMENT_BYTES.get(dtype, 2.0)


def activation_bytes(tokens: int, width: int, tensor: int, *, experts: bool = False) -> int:
    """What one layer's intermediate tensors take for a step of `tokens`; layers use the same memory in turn.

    `2 x tokens x width x (4 + 7 / tensor)`, twice that with experts, at least 70 MiB: a fit to engines' measured
    activations (ai-dynamo/aiconfigurator, sdk/backends/trtllm_backend.py). `width`: attention heads times their size.
    """
    factor = (4 + 7 / tensor) * (2 if experts else 1)
    return max(round(2 * tokens * width * factor), _LEAST_ACTIVATIONS)


def logits_bytes(rows: int, vocab_size: int, *, context_rows: int = 0) -> int:
    """Logits of the rows that are sampled, with the sampler's copies, and of `context_rows` that are only kept: f32."""
    return 4 * vocab_size * (_SAMPLING_COPIES * rows + context_rows)


def nccl_bytes(gpus: int) -> int:
    """Buffers of NCCL's connections: none, 342 MiB for two GPUs, 392 MiB for more. Observed (aiconfigurator, as
    above)."""
    return next((size for count, size in _NCCL_BYTES if gpus <= count), _NCCL_BYTES_BEYOND)


def kv_pool_tokens(pool_bytes: float, bytes_per_token: float, tokens_per_block: int) -> int:
    """Tokens in the whole blocks of a pool."""
    return int(max(pool_bytes, 0) // (bytes_per_token * tokens_per_block)) * tokens_per_block
