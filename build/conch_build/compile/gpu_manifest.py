"""`engine.json` of a GPU engine from its plan: what is asked for, before anything is built. Both GPU backends."""

from __future__ import annotations

from collections.abc import Sequence

from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype
from conch_build.gpu.cards import gpu_of
from conch_build.manifest import (
    EngineCheckpoint,
    EngineQuantization,
    GpuAdapter,
    GpuEngineManifest,
    GpuKvCache,
    GpuLimits,
    GpuLora,
    GpuParallel,
    GpuSpeculation,
)
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan


def gpu_manifest(
    plan: Plan,
    info: ModelInfo,
    *,
    release: str,
    container: str,
    modules: Sequence[str] = (),
    group_size: int | None = None,
    checkpoint: EngineCheckpoint | None = None,
) -> GpuEngineManifest:
    """The record of what `plan` makes of the model `info`.

    `modules`: what adapters may touch, none without adapters; `group_size`: of formats whose weights share scales.
    """
    engine, parallel, adapters = plan.engine, plan.engine.parallel, plan.engine.lora.adapters
    numbered = [GpuAdapter(name=name, id=number) for number, name in enumerate(adapters, 1)]
    lora = GpuLora(max_rank=engine.lora.max_rank, target_modules=list(modules), adapters=numbered)
    return GpuEngineManifest(
        name=plan.name,
        backend="tensorrt" if engine.backend == "tensorrt" else "pytorch",
        tensorrt_llm=release,
        container=container,
        gpu=gpu_of(plan).name,
        architecture=info.architecture,
        dtype=gpu_dtype(plan, info),
        vocab_size=info.vocab_size,
        end_ids=list(info.end_ids),
        bos_id=info.bos_id,
        pad_id=info.pad_id,
        limits=GpuLimits(
            max_batch_size=engine.max_batch_size,
            max_num_tokens=engine.max_num_tokens,
            max_seq_len=engine.max_seq_len,
            max_queue_size=engine.max_queue_size,
            chunked_prefill=engine.chunked_prefill,
        ),
        parallel=GpuParallel(tensor=parallel.tensor, pipeline=parallel.pipeline, expert=parallel.expert),
        quantization=EngineQuantization(format=_format(plan, info), group_size=group_size),
        kv_cache=GpuKvCache(
            dtype=gpu_kv_dtype(plan, info),
            tokens_per_block=engine.kv_cache.tokens_per_block,
            reuse=engine.kv_cache.reuse,
        ),
        speculation=_speculation(plan),
        lora=lora if modules else None,
        checkpoint=checkpoint or EngineCheckpoint(),
    )


def _format(plan: Plan, info: ModelInfo) -> str:
    """The plan's, or that of a checkpoint which comes quantized, as its config names it."""
    stored = info.quantization
    if stored is None:
        return plan.quantization.format
    return str(stored.get("quant_algo") or stored.get("quant_method") or "unknown")


def _speculation(plan: Plan) -> GpuSpeculation:
    asked = plan.engine.speculation
    if asked.method == "none":
        return GpuSpeculation()
    return GpuSpeculation(method=asked.method, max_draft_len=asked.max_draft_len)
