"""Rules about lengths and batches, and about this machine's memory for a CPU engine. The arithmetic is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.machine import free_memory_bytes, memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import CPU, GPU, Violation, rule
from conch_build.size.cpu import cpu_weight_bytes
from conch_build.sizing import (
    blocks_for,
    cpu_kv_dtype,
    kv_bytes_per_token,
    kv_pool_blocks,
    kv_pool_bytes_for,
)
from conch_build.units import format_bytes


@rule("limits.num-tokens-below-batch")
def _a_step_holds_the_batch(plan: Plan) -> Iterator[Violation]:
    """Each request of the batch writes a token a step. With fewer tokens a step than requests, some always wait;
    TensorRT-LLM only warns, and runs the smaller batch."""
    engine = plan.engine
    if engine.max_num_tokens < engine.max_batch_size:
        yield Violation(
            "engine.max_num_tokens",
            f"{engine.max_num_tokens} tokens a step are too few for {engine.max_batch_size} requests",
            f"Set `engine.max_num_tokens` to at least {engine.max_batch_size}.",
            "error" if engine.backend == "openvino" else "warning",
        )


@rule(
    "limits.unchunked-prefill",
    references=(
        "triton-inference-server/tensorrtllm_backend#565",
        "triton-inference-server/tensorrtllm_backend#141",
        "NVIDIA/TensorRT-LLM#4641",
        "NVIDIA/TensorRT-LLM#2702",
        "NVIDIA/TensorRT-LLM#977",
    ),
)
def _a_prompt_fits_one_step(plan: Plan) -> Iterator[Violation]:
    """Without chunks a prompt is read in one step, so that `max_num_tokens` is the longest prompt there is; with packed
    input `max_input_len` counts for nothing. The server refuses such prompts one by one, often at 8192 tokens."""
    engine = plan.engine
    longest = engine.max_seq_len - 1
    if not engine.chunked_prefill and engine.max_num_tokens < longest:
        yield Violation(
            "engine.max_num_tokens",
            f"unchunked, a prompt of {longest} tokens overflows a step of {engine.max_num_tokens}",
            f"Set `engine.chunked_prefill: true`, or `engine.max_num_tokens` to at least {longest}.",
        )


@rule("limits.seq-len", references=("triton-inference-server/tensorrtllm_backend#624",))
def _positions_exist(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Beyond the positions that it was trained on, or that its rope scaling stretches to, a model writes nonsense:
    short prompts look good, long ones do not."""
    if plan.engine.max_seq_len > info.max_position_embeddings:
        yield Violation(
            "engine.max_seq_len",
            f"{plan.engine.max_seq_len} is beyond the {info.max_position_embeddings} positions of the model",
            f"Set `engine.max_seq_len` to at most {info.max_position_embeddings}.",
        )


@rule("limits.block-size", on=GPU, references=("NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/kvCacheUtils.h",))
def _blocks_are_powers_of_two(plan: Plan) -> Iterator[Violation]:
    """TensorRT-LLM finds a token's place in a block by shifting bits, so that blocks must hold a power of two of
    tokens."""
    size = plan.engine.kv_cache.tokens_per_block
    if size & (size - 1):
        yield Violation(
            "engine.kv_cache.tokens_per_block", f"{size} is no power of two", "Set it to 16, 32, 64 or 128."
        )


@rule("limits.kv-pool", on=CPU)
def _kv_pool_holds_one_request(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The KV cache must hold at least one request of the full length, or it can never be answered."""
    cache, length = plan.engine.kv_cache, plan.engine.max_seq_len
    dtype = cpu_kv_dtype(plan.quantization.kv_cache)
    token = kv_bytes_per_token(info.num_layers, info.num_kv_heads, info.head_dim, dtype)
    needed = blocks_for(length, cache.tokens_per_block)
    size = _pool_bytes(plan, cache.tokens_per_block * token)
    held = kv_pool_blocks(size, cache.tokens_per_block, token)
    if held < needed:
        enough = format_bytes(needed * cache.tokens_per_block * token)
        yield Violation(
            "engine.kv_cache.size",
            f"{format_bytes(size)} holds {held} blocks; one request of {length} tokens takes {needed} "
            f"({token:,} bytes a token in {dtype})",
            f"Set it to at least {enough.replace(' ', '')}"
            + (f", or lower `engine.max_seq_len` to {held * cache.tokens_per_block}." if held else "."),
        )


@rule("limits.memory", on=CPU)
def _machine_holds_the_engine(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Weights and KV cache must fit this machine's memory, and the checkpoint too while it is compiled."""
    memory = memory_bytes()
    weights = cpu_weight_bytes(info, plan.quantization.format, plan.engine.max_seq_len)
    dtype = cpu_kv_dtype(plan.quantization.kv_cache)
    token = kv_bytes_per_token(info.num_layers, info.num_kv_heads, info.head_dim, dtype)
    pool = _pool_bytes(plan, plan.engine.kv_cache.tokens_per_block * token)
    if weights + pool > memory:
        yield Violation(
            "engine.kv_cache.size",
            f"weights ({format_bytes(weights)}) and KV cache ({format_bytes(pool)}) do not fit "
            f"this machine's {format_bytes(memory)}",
            "Lower `engine.kv_cache.size`, quantize further, or use a larger machine.",
        )
    if info.weight_bytes > memory:
        yield Violation(
            "model.checkpoint",
            f"its weights ({format_bytes(info.weight_bytes)}), which a build loads whole, do not fit "
            f"this machine's {format_bytes(memory)}",
            "Build on a larger machine.",
        )


def _pool_bytes(plan: Plan, block_bytes: int) -> int:
    """Bytes of KV cache that the plan asks for, by whichever of its keys."""
    cache = plan.engine.kv_cache
    if cache.concurrency is not None:
        return kv_pool_bytes_for(cache.concurrency, plan.engine.max_seq_len, cache.tokens_per_block, block_bytes)
    if cache.free_memory_fraction is not None:
        return int(cache.free_memory_fraction * free_memory_bytes())
    return cache.size
