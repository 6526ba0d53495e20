"""What a model takes of a GPU: weights by format and split, KV cache, and what is left for requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conch_build.gpu.memory import GpuMemory, gpu_memory
from conch_build.gpu.sizing import (
    activation_bytes,
    gpu_kv_bytes_per_token,
    kv_pool_tokens,
    latent_kv_bytes_per_token,
    logits_bytes,
    nccl_bytes,
)
from conch_build.gpu.storage import STORAGE, storage_of, stored_format
from conch_build.gpu.weights import Split, adapter_bytes, kv_heads_per_gpu, stage_layers, weight_bytes
from conch_build.model_info import Latent, ModelInfo
from conch_build.plan import Plan, parse_plan
from conch_build.size.cache import cache_of, pages_of
from tests.build.configs import Name, described

GIB = 1 << 30
H100 = 80 * GIB


def plan_of(**engine: Any) -> Plan:
    quantization = engine.pop("quantization", {})
    data = {
        "name": "model",
        "model": {"checkpoint": "unread"},
        "quantization": quantization,
        "engine": {"backend": "tensorrt", "max_seq_len": 8192, "max_batch_size": 256, "max_num_tokens": 8192, **engine},
    }
    return parse_plan(yaml.safe_dump(data))


def memory_of(name: Name = "llama-3-8b", total: int = H100, **engine: Any) -> GpuMemory:
    return gpu_memory(plan_of(**engine), described(name), total)


# KV cache


def test_the_kv_cache_of_256_requests_of_8192_tokens_is_exact() -> None:
    memory = memory_of(kv_cache={"concurrency": 256}, total=400 * GIB)
    assert memory.kv_bytes_per_token == 131_072
    assert memory.kv_cache_bytes == memory.kv_wanted_bytes == 274_877_906_944
    assert (memory.kv_tokens, memory.requests) == (8192 * 256, 256)


@pytest.mark.parametrize(
    ("name", "a_token"),
    [("llama-3.3-70b", 327_680), ("qwen3-32b", 262_144), ("mixtral-8x7b", 131_072), ("smollm2-135m", 23_040)],
)
def test_kv_bytes_a_token_of_known_models(name: Name, a_token: int) -> None:
    assert memory_of(name, total=400 * GIB).kv_bytes_per_token == a_token


@pytest.mark.parametrize(("kv_cache", "share"), [("fp8", 0.5), ("int8", 0.5), ("nvfp4", 0.28125), ("auto", 1)])
def test_a_quantized_kv_cache_is_smaller(kv_cache: str, share: float) -> None:
    memory = memory_of(quantization={"kv_cache": kv_cache})
    assert memory.kv_bytes_per_token == 131_072 * share


def test_fp8_weights_bring_an_fp8_kv_cache() -> None:
    assert memory_of(quantization={"format": "fp8"}).kv_bytes_per_token == 65_536


def test_kv_heads_are_copied_where_there_are_more_gpus_than_heads() -> None:
    assert [kv_heads_per_gpu(8, tensor) for tensor in (1, 2, 4, 8, 16)] == [8, 4, 2, 1, 1]
    of_8, of_16 = (memory_of(parallel={"tensor": tensor}).kv_bytes_per_token for tensor in (8, 16))
    assert of_8 == of_16 == 131_072 / 8


def test_pipeline_stages_cache_their_own_layers() -> None:
    assert memory_of(parallel={"pipeline": 4}).kv_bytes_per_token == 131_072 / 4


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    assert latent_kv_bytes_per_token(61, 512, 64, "bfloat16") == 70_272
    info = dataclasses.replace(described("llama-3-8b"), latent=Latent(512, 64, 128, 128, 1536), num_layers=61)
    for tensor in (1, 8):  # which all tensor ranks have whole
        assert gpu_memory(plan_of(parallel={"tensor": tensor}), info, H100).kv_bytes_per_token == 70_272


@given(
    layers=st.integers(1, 128),
    heads=st.integers(1, 128),
    head_dim=st.sampled_from([64, 80, 128, 256]),
    tensor=st.integers(1, 64),
)
def test_no_split_loses_a_part_of_the_cache(layers: int, heads: int, head_dim: int, tensor: int) -> None:
    whole = gpu_kv_bytes_per_token(layers, heads, head_dim, "bfloat16")
    share = gpu_kv_bytes_per_token(layers, kv_heads_per_gpu(heads, tensor), head_dim, "bfloat16")
    assert whole <= tensor * share
    assert share <= whole


@given(pool=st.integers(0, 10**12), a_token=st.floats(1, 10**6), block=st.sampled_from([16, 32, 64, 128]))
def test_a_pool_holds_whole_blocks_and_no_more_than_its_bytes(pool: int, a_token: float, block: int) -> None:
    tokens = kv_pool_tokens(pool, a_token, block)
    assert tokens % block == 0
    assert tokens * a_token <= pool * (1 + 1e-9)
    assert pool < (tokens + block) * a_token * (1 + 1e-9)


@given(
    name=st.sampled_from(["llama-3-8b", "mixtral-8x7b", "smollm2-135m"]),
    length=st.integers(64, 8192),
    window=st.sampled_from([0, 128, 1000]),
    every=st.integers(1, 3),
    kind=st.sampled_from(["tensorrt", "pytorch"]),
)
def test_as_many_requests_fit_as_their_pages_do_with_windows_and_without(
    name: Name, length: int, window: int, every: int, kind: str
) -> None:
    info = described(name)
    info = dataclasses.replace(info, windows=tuple(window * (n % every == 0) for n in range(info.num_layers)))
    plan = plan_of(backend=kind, max_seq_len=length)
    memory = gpu_memory(plan, info, 400 * GIB)
    cache = cache_of(info, "bf16", plan.engine.kv_cache.tokens_per_block)
    assert memory.requests == cache.requests_in(memory.kv_cache_bytes, length, pages_of(plan, info))
    wanted = gpu_memory(plan_of(backend=kind, max_seq_len=length, kv_cache={"concurrency": 7}), info, 400 * GIB)
    assert wanted.kv_wanted_bytes == 7 * wanted.request_bytes and wanted.requests == 7


def test_a_window_that_the_engine_makes_use_of_leaves_room_for_more_requests() -> None:
    info = dataclasses.replace(described("llama-3-8b"), windows=(1024,) * 32)
    engine, llm_api = (gpu_memory(plan_of(backend=kind), info, H100) for kind in ("tensorrt", "pytorch"))
    assert engine.request_bytes == llm_api.request_bytes // 8 == 1024 * 131_072


# Weights


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.3-70b", "qwen3-32b", "mixtral-8x7b", "smollm2-135m"])
def test_on_one_gpu_16_bit_weights_are_two_bytes_a_parameter(name: Name) -> None:
    info = described(name)
    assert weight_bytes(info, STORAGE["none"], shared=True).total == 2 * info.parameters


def test_an_engine_stores_a_tied_head_beside_the_embedding() -> None:
    info = described("smollm2-135m")
    assert weight_bytes(info, STORAGE["none"]).total == 2 * (info.parameters + info.embedding_parameters)


@pytest.mark.parametrize(
    ("form", "bits"),
    [("fp8", 8), ("int8", 8), ("int4_awq", 4.125), ("w4a8_awq", 4.125), ("nvfp4", 4.5), ("int8_sq", 8)],
)
def test_formats_count_their_scales_and_leave_embedding_and_head_in_16_bits(form: str, bits: float) -> None:
    info = described("llama-3-8b")
    weights = weight_bytes(info, storage_of(form))
    linear = info.parameters - 2 * info.embedding_parameters - 65 * info.hidden_size
    assert weights.linear == pytest.approx(linear * bits / 8, rel=0.002)
    assert weights.linear >= linear * bits / 8
    assert weights.embedding == weights.head == 2 * info.embedding_parameters
    assert weights.other == 2 * 65 * info.hidden_size


def test_smaller_groups_have_more_scales() -> None:
    assert storage_of("int4_awq", 64).bytes_of(64, 1024) - storage_of("int4_awq").bytes_of(64, 1024) == 2 * 64 * 8


@given(
    name=st.sampled_from(["llama-3-8b", "qwen3-32b", "mixtral-8x7b"]),
    tensor=st.sampled_from([1, 2, 4, 8, 16]),
    pipeline=st.sampled_from([1, 2, 3, 4]),
    form=st.sampled_from(sorted(STORAGE)),
)
def test_all_gpus_together_hold_the_model(name: Name, tensor: int, pipeline: int, form: str) -> None:
    info = _DESCRIBED[name]
    storage = STORAGE[form]
    whole = weight_bytes(info, storage)
    share = weight_bytes(info, storage, Split(tensor, pipeline))
    assert share.total <= whole.total
    assert share.total * tensor * pipeline >= whole.total * 0.999  # scales of whole matrices are counted on each


_DESCRIBED: dict[str, ModelInfo] = {
    name: described(name)  # type: ignore[arg-type]
    for name in ("llama-3-8b", "qwen3-32b", "mixtral-8x7b")
}


def test_an_even_split_of_70b_over_four_gpus() -> None:
    info = described("llama-3.3-70b")
    weights = weight_bytes(info, STORAGE["none"], Split(4))
    norms = 2 * 161 * info.hidden_size
    assert weights.total == (2 * info.parameters - norms) // 4 + norms


def test_an_engine_keeps_the_whole_embedding_on_each_gpu() -> None:
    info = described("llama-3.3-70b")
    split = weight_bytes(info, STORAGE["none"], Split(4))
    whole = weight_bytes(info, STORAGE["none"], Split(4), whole_embedding=True)
    assert whole.embedding == 4 * split.embedding and whole.head == split.head


def test_experts_may_be_spread_whole_or_by_their_rows() -> None:
    info = described("mixtral-8x7b")
    by_rows, whole = (weight_bytes(info, STORAGE["none"], Split(4, 1, expert)).linear for expert in (1, 4))
    assert by_rows == whole
    assert (
        weight_bytes(info, STORAGE["none"], Split(3, 1, 3)).linear
        > weight_bytes(info, STORAGE["none"], Split(3)).linear
    )  # three groups of eight experts: one has three


@given(layers=st.integers(1, 200), pipeline=st.integers(1, 16))
def test_stages_hold_every_layer_once_and_differ_by_one_at_most(layers: int, pipeline: int) -> None:
    stages = stage_layers(layers, pipeline)
    assert [index for stage in stages for index in stage] == list(range(layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


def test_adapters_grow_with_their_rank_and_are_split_like_their_layers() -> None:
    info = described("llama-3-8b")
    one = adapter_bytes(info, 16)
    widths = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
    assert one == 32 * 2 * 16 * sum(rows + columns for rows, columns in widths)
    assert adapter_bytes(info, 32) == 2 * one
    assert one / 2 < adapter_bytes(info, 16, Split(2)) < one


@pytest.mark.parametrize(
    ("quantization", "form"),
    [
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_blocks"),
        ({"quant_method": "gptq", "bits": 4}, "int4_gptq"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes"}, None),
    ],
)
def test_checkpoints_that_come_quantized_are_counted_in_their_format(
    quantization: dict[str, Any], form: str | None
) -> None:
    assert stored_format(quantization) == form
    info = dataclasses.replace(described("llama-3-8b"), quantization=quantization)
    expected = weight_bytes(info, STORAGE[form], whole_embedding=True).total if form else info.weight_bytes
    assert gpu_memory(plan_of(), info, H100).parts["weights"] == expected


@pytest.mark.parametrize(("form", "whole"), [("none", True), ("int8", True), ("fp8", False), ("int4_awq", False)])
def test_an_engine_that_modelopt_calibrated_has_its_embedding_cut(form: str, whole: bool) -> None:
    info = described("llama-3.3-70b")
    plan = plan_of(quantization={"format": form}, parallel={"tensor": 4})
    expected = weight_bytes(info, STORAGE[form], Split(4), whole_embedding=whole).total
    assert gpu_memory(plan, info, H100).parts["weights"] == expected


# The rest


@given(tokens=st.integers(1, 1 << 17), width=st.sampled_from([576, 4096, 8192]), tensor=st.sampled_from([1, 2, 4, 8]))
def test_activations_grow_with_tokens_and_shrink_with_gpus(tokens: int, width: int, tensor: int) -> None:
    own = activation_bytes(tokens, width, tensor)
    assert own <= activation_bytes(tokens + 1, width, tensor)
    assert own >= activation_bytes(tokens, width, 2 * tensor) >= 70 << 20
    assert own <= activation_bytes(tokens, width, tensor, experts=True)


def test_activations_of_llama_3_8b_for_8192_tokens() -> None:
    assert memory_of().parts["activations"] == 2 * 8192 * 4096 * 11


def test_logits_grow_with_the_batch_and_with_guesses() -> None:
    assert logits_bytes(256, 128_256) == 3 * 4 * 256 * 128_256
    plain = memory_of().parts["logits"]
    assert memory_of(speculation={"method": "lookahead", "max_draft_len": 3}).parts["logits"] == 4 * plain
    kept = memory_of(build_args={"gather_context_logits": True}).parts["logits"]
    assert kept == plain + 4 * 8192 * 128_256


def test_nccl_takes_memory_only_of_several_gpus() -> None:
    assert [nccl_bytes(gpus) >> 20 for gpus in (1, 2, 4, 8, 16)] == [0, 342, 392, 392, 392]


def test_adapters_and_a_draft_model_take_their_part() -> None:
    draft = described("smollm2-135m")
    plan = plan_of(lora={"target_modules": ["attn_q", "attn_v"], "max_loaded": 2, "max_rank": 8})
    memory = gpu_memory(plan, described("llama-3-8b"), H100, draft)
    alone = memory_of()
    assert memory.parts["adapters"] == 2 * 32 * 2 * 8 * (4096 + 4096 + 1024 + 4096)
    assert memory.parts["draft model"] > 2 * draft.parameters
    assert memory.kv_bytes_per_token == alone.kv_bytes_per_token + 23_040


# The pool


def test_the_pool_is_the_fraction_of_what_is_left() -> None:
    memory = memory_of(kv_cache={"free_memory_fraction": 0.5})
    assert memory.kv_cache_bytes == int(0.5 * (H100 - memory.used_bytes))
    assert memory_of().kv_cache_bytes == int(0.9 * (H100 - memory_of().used_bytes))
    assert memory.requests == memory.kv_tokens // 8192


def test_a_size_is_kept_to_as_far_as_there_is_memory() -> None:
    assert memory_of(kv_cache={"size": "4GiB"}).kv_cache_bytes == 4 * GIB
    assert memory_of(kv_cache={"size": "400GiB"}).kv_cache_bytes == memory_of().kv_cache_bytes


def test_a_model_that_does_not_fit_leaves_no_cache() -> None:
    memory = memory_of("llama-3.3-70b")
    assert memory.kv_limit_bytes < 0
    assert (memory.kv_cache_bytes, memory.kv_tokens, memory.requests) == (0, 0, 0)


@given(
    total=st.integers(8 * GIB, 200 * GIB),
    fraction=st.floats(0.01, 0.99),
    batch=st.integers(1, 2048),
    tensor=st.sampled_from([1, 2, 4, 8]),
)
def test_parts_and_cache_never_exceed_a_gpu_that_holds_the_parts(
    total: int, fraction: float, batch: int, tensor: int
) -> None:
    plan = plan_of(max_batch_size=batch, parallel={"tensor": tensor}, kv_cache={"free_memory_fraction": fraction})
    memory = gpu_memory(plan, _DESCRIBED["llama-3-8b"], total)
    if memory.kv_limit_bytes >= 0:
        assert memory.used_bytes + memory.kv_cache_bytes <= total
    assert memory.kv_tokens * memory.kv_bytes_per_token <= memory.kv_cache_bytes
