"""Checkpoint directory -> engine directory: the compiled graph, the tokenizer and `engine.json`."""

from __future__ import annotations

import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from conch_build.compile.openvino.layouts import method_of
from conch_build.errors import CompileError
from conch_build.machine import has_bf16
from conch_build.manifest import (
    TOKENIZER_DIR,
    TOKENIZER_FILES,
    EngineKvCache,
    EngineManifest,
    EngineQuantization,
    EngineSpeculation,
)
from conch_build.quantized import producer, stored_group_size
from conch_build.sizing import cpu_kv_dtype

if TYPE_CHECKING:
    from conch_build.compile.openvino.decoder import Decoder
    from conch_build.compile.openvino.layouts import Layout
    from conch_build.model_info import ModelInfo
    from conch_build.plan import Plan

CANDIDATES = 64
"""Best tokens that the graph hands out for each sampled row: enough for 20 log probs and the usual top_k."""

MODEL_FILE = "model.xml"


def compile_engine(checkpoint: Path, out: Path, plan: Plan, info: ModelInfo) -> EngineManifest:
    """Compile the (quantized) checkpoint directory into `out`, which exists and is empty.

    Returns the manifest, also written as `out/engine.json`. Raises CheckpointError for weights it cannot read and
    CompileError when OpenVINO refuses the graph.
    """
    import openvino as ov

    from conch_build.compile.openvino.decoder import Decoder

    started = time.perf_counter()
    decoder = Decoder(checkpoint, max_seq_len=plan.engine.max_seq_len, candidates=CANDIDATES)
    try:
        ov.save_model(decoder.build(), out / MODEL_FILE, compress_to_fp16=False)
    except RuntimeError as error:
        raise CompileError(f"OpenVINO refused the graph: {error}", where=str(checkpoint)) from error
    tokenizer = out / TOKENIZER_DIR
    tokenizer.mkdir()
    for name in TOKENIZER_FILES:
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, tokenizer / name)
    manifest = _manifest(checkpoint, plan, info, decoder, time.perf_counter() - started)
    manifest.save(out)
    return manifest


def _manifest(checkpoint: Path, plan: Plan, info: ModelInfo, decoder: Decoder, seconds: float) -> EngineManifest:
    engine = plan.engine
    layout = decoder.weights.layout
    precision = _precision(plan, layout)
    return EngineManifest(
        name=plan.name,
        backend="openvino",
        architecture=info.architecture,
        model_type=info.model_type,
        num_layers=info.num_layers,
        num_attention_heads=info.num_attention_heads,
        num_kv_heads=info.num_kv_heads,
        head_dim=info.head_dim,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        sliding_windows=decoder.windows,
        attention_scale=decoder.family.attention_scale,
        attention_softcap=decoder.family.attention_softcap,
        end_ids=list(info.end_ids),
        bos_id=info.bos_id,
        pad_id=info.pad_id,
        precision=precision,
        threads=None if engine.threads == "auto" else engine.threads,
        max_batch_size=engine.max_batch_size,
        max_num_tokens=engine.max_num_tokens,
        max_seq_len=engine.max_seq_len,
        max_queue_size=engine.max_queue_size,
        chunked_prefill=engine.chunked_prefill,
        kv_cache=EngineKvCache(
            dtype=cpu_kv_dtype(plan.quantization.kv_cache),
            tokens_per_block=engine.kv_cache.tokens_per_block,
            size_bytes=engine.kv_cache.size,
            free_memory_fraction=engine.kv_cache.free_memory_fraction,
            reuse=engine.kv_cache.reuse,
        ),
        top_candidates=decoder.candidates,
        quantization=EngineQuantization(
            format=method_of(info.quantization) if info.quantization else plan.quantization.format,
            group_size=stored_group_size(checkpoint),
            producer=producer(checkpoint),
        ),
        speculation=_speculation(plan),
        cpu_features=["avx512_bf16"] if precision == "bf16" else ["avx2"],
        versions={name: version(name) for name in ("conch", "openvino", "transformers")},
        build_seconds={"compile": round(seconds, 3)},
    )


def _speculation(plan: Plan) -> EngineSpeculation:
    asked = plan.engine.speculation
    if asked.method == "draft":
        return EngineSpeculation(method="draft", max_draft_len=asked.max_draft_len)
    if asked.method == "ngram":
        size = asked.max_matching_ngram_size
        return EngineSpeculation(method="ngram", max_draft_len=asked.max_draft_len, max_matching_ngram_size=size)
    return EngineSpeculation()


def _precision(plan: Plan, layout: Layout | None) -> Literal["bf16", "f32"]:
    """The plan's, or what is faster: int8/int4 weights are multiplied with int8 activations in either precision,
    and f32 keeps the logits exact, as it keeps fp8 activations; 16-bit weights need bf16 arithmetic to be fast."""
    if plan.engine.precision in ("bf16", "f32"):
        return plan.engine.precision
    if plan.quantization.kv_cache in ("bf16", "f32"):  # attention computes in the cache's type
        return plan.quantization.kv_cache
    if layout is not None and layout.computes_in_f32:
        return "f32"
    return "bf16" if has_bf16() else "f32"
