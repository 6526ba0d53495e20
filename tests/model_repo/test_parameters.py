"""Every parameter of upstream's templates is set from the plan, or left to its default for a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conch_build.errors import PlanError
from conch_build.gpu.weights import adapter_bytes
from conch_build.pack import check_plan
from conch_build.pack import parameters as tables
from conch_build.pack.parameters import lookahead_size, values
from tests.build.models import LLAMA_8B, SMOLLM
from tests.model_repo.plans import deployed, plan_for

UPSTREAM = json.loads((Path(__file__).parent / "upstream.json").read_text())
TABLES = {
    "tensorrt_llm": tables.ENGINE,
    "preprocessing": tables.PREPROCESSING,
    "postprocessing": tables.POSTPROCESSING,
    "tensorrt_llm_bls": tables.BLS,
    "ensemble": {},
}


def engine(plan_triton: dict[str, Any] | None = None, **engine: Any) -> dict[str, str]:
    return values(tables.ENGINE, deployed(plan_for("tensorrt", triton=plan_triton, **engine)))


@pytest.mark.parametrize("model", TABLES)
def test_the_table_has_all_that_upstream_has(model: str) -> None:
    own = {"cancellation_check_period_ms"} if model == "tensorrt_llm_bls" else set()
    assert set(TABLES[model]) - own == set(UPSTREAM[model]["parameters"])
    assert set(UPSTREAM[model]["bare"]) <= set(tables.PLACEHOLDERS)


@pytest.mark.parametrize("model", TABLES)
def test_what_is_left_to_its_default_has_a_reason(model: str) -> None:
    reasons = {name: entry for name, entry in TABLES[model].items() if isinstance(entry, str)}
    assert all(len(reason) > 10 for reason in reasons.values())


def test_a_plain_plan_sets_this() -> None:
    assert engine() == {
        "gpt_model_path": "/engines/a/engine",
        "gpt_model_type": "inflight_fused_batching",
        "exclude_input_in_output": "false",
        "cancellation_check_period_ms": "50",
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": "true",
        "tokenizer_dir": "",
        "guided_decoding_backend": "xgrammar",
        "xgrammar_tokenizer_info_path": "/engines/a/xgrammar_tokenizer_info.json",
    }


def test_switches_follow_the_plan() -> None:
    off = engine(chunked_prefill=False, kv_cache={"reuse": False})
    assert off["enable_chunked_context"] == off["enable_kv_cache_reuse"] == "false"


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ({"free_memory_fraction": 0.6}, {"kv_cache_free_gpu_mem_fraction": "0.6"}),
        ({"concurrency": 8}, {"max_tokens_in_paged_kv_cache": str(8 * 4096)}),
        ({"concurrency": 3, "tokens_per_block": 64}, {"max_tokens_in_paged_kv_cache": str(3 * 4096)}),
        ({"size": "16GiB"}, {"max_tokens_in_paged_kv_cache": str((16 << 30) // (2 * 32 * 8 * 128 * 2))}),
    ],
)
def test_the_kv_cache_has_the_size_that_the_plan_says(cache: dict[str, Any], expected: dict[str, str]) -> None:
    sized = engine(kv_cache=cache)
    names = ("kv_cache_free_gpu_mem_fraction", "max_tokens_in_paged_kv_cache")
    assert {name: sized[name] for name in names if name in sized} == expected


def test_a_cache_for_so_many_requests_is_that_of_their_windows() -> None:
    def tokens(windows: tuple[int, ...]) -> int:
        info = replace(LLAMA_8B, model_type="mistral", sliding_window=1024, windows=windows)
        plan = plan_for("tensorrt", max_seq_len=4096, kv_cache={"concurrency": 3})
        return int(values(tables.ENGINE, deployed(plan, info))["max_tokens_in_paged_kv_cache"])

    assert (tokens((1024,) * 32), tokens((0,) * 32)) == (3 * 1024, 3 * 4096)
    assert tokens((1024, 0) * 16) == 3 * (1024 + 4096) // 2


def test_gpus_that_share_a_model_hold_more_tokens_each() -> None:
    one = engine(kv_cache={"size": "1GiB"})["max_tokens_in_paged_kv_cache"]
    four = engine(kv_cache={"size": "1GiB"}, parallel={"tensor": 2, "pipeline": 2})["max_tokens_in_paged_kv_cache"]
    assert int(four) == 4 * int(one)


@pytest.mark.parametrize(
    ("model_type", "window", "longest", "expected"),
    [
        ("mistral", 4096, 8192, "4096"),
        ("mistral", 4096, 4096, None),
        ("gemma2", 1024, 4096, "1024,4096"),
        ("gemma3_text", 512, 4096, "512,512,512,512,512,4096"),
    ],
)
def test_layers_look_back_as_the_model_was_trained(
    model_type: str, window: int, longest: int, expected: str | None
) -> None:
    info = replace(LLAMA_8B, model_type=model_type, sliding_window=window)
    found = values(tables.ENGINE, deployed(plan_for("tensorrt", max_seq_len=longest), info))
    assert found.get("max_attention_window_size") == expected


@pytest.mark.parametrize(
    ("triton", "parallel", "groups", "worker"),
    [
        ({}, {}, None, False),
        ({}, {"tensor": 4}, None, False),
        ({"instances": 3}, {}, "0;1;2", False),
        ({"launch": "orchestrator"}, {"tensor": 2}, "0,1", True),
        ({"launch": "orchestrator", "instances": 2}, {"tensor": 2, "pipeline": 2}, "0,1,2,3;4,5,6,7", True),
    ],
)
def test_instances_have_gpus_of_their_own(
    triton: dict[str, Any], parallel: dict[str, Any], groups: str | None, worker: bool
) -> None:
    found = engine(triton, parallel=parallel)
    assert found.get("gpu_device_ids") == groups
    assert ("executor_worker_path" in found) == worker


def test_an_engine_over_several_nodes_says_how_many() -> None:
    assert "num_nodes" not in engine(parallel={"tensor": 8})
    assert engine(parallel={"tensor": 8, "pipeline": 2})["num_nodes"] == "2"


def test_a_draft_and_its_target_hold_the_same_tokens() -> None:
    def both(**cache: Any) -> list[dict[str, str]]:
        speculation = {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}
        target = replace(deployed(plan_for("tensorrt", kv_cache=cache, speculation=speculation)), draft_info=SMOLLM)
        return [values(tables.ENGINE, each) for each in (target, target.of_draft())]

    llama, smollm = 2 * 32 * 8 * 128 * 2, 2 * 30 * 3 * 64 * 2
    shares = [float(each["kv_cache_free_gpu_mem_fraction"]) for each in both()]
    assert shares == pytest.approx([0.9 * size / (llama + smollm) for size in (llama, smollm)], rel=1e-3)
    for cache, tokens in (({"size": "8GiB"}, (8 << 30) // (llama + smollm) // 32 * 32), ({"concurrency": 2}, 8192)):
        for each in both(**cache):
            assert each["max_tokens_in_paged_kv_cache"] == str(tokens)
            assert "kv_cache_free_gpu_mem_fraction" not in each


def test_adapters_are_prefetched_and_fit_the_cache() -> None:
    def of(rank: int) -> dict[str, str]:
        return engine(lora={"max_rank": rank, "adapters": {"legal": "/legal", "poems": "/poems"}})

    small, large = of(8), of(256)
    assert small["lora_prefetch_dir"] == "/engines/a/lora"
    assert small["lora_cache_max_adapter_size"] == small["lora_cache_optimal_adapter_size"] == "8"
    assert "lora_cache_host_memory_bytes" not in small
    assert int(large["lora_cache_host_memory_bytes"]) == 2 * adapter_bytes(LLAMA_8B, 256)


def test_a_draft_takes_no_adapters_and_no_guides() -> None:
    plan = plan_for(
        "tensorrt",
        lora={"adapters": {"legal": "/legal"}},
        speculation={"method": "draft", "checkpoint": "sample", "max_draft_len": 4},
    )
    target = deployed(plan)
    draft = values(tables.ENGINE, target.of_draft())
    assert not [name for name in draft if "lora" in name]
    assert draft["guided_decoding_backend"] == draft["xgrammar_tokenizer_info_path"] == ""
    assert "lora_prefetch_dir" in values(tables.ENGINE, target)


def test_speculation_within_the_engine_is_decoded_by_its_own_mode() -> None:
    assert "decoding_mode" not in engine()
    assert (
        engine(speculation={"method": "medusa", "checkpoint": "heads", "max_draft_len": 63})["decoding_mode"]
        == "medusa"
    )
    ahead = engine(speculation={"method": "lookahead", "max_draft_len": 83})
    assert ahead["decoding_mode"] == "lookahead"
    sizes = ("window_size", "ngram_size", "verification_set_size")
    assert [ahead[f"lookahead_{name}"] for name in sizes] == ["7", "7", "7"]
    assert ahead["guided_decoding_backend"] == ""


@pytest.mark.parametrize(("draft_len", "size"), [(3, 2), (4, 2), (10, 2), (11, 3), (82, 6), (83, 7)])
def test_a_lookahead_step_fits_the_draft_length(draft_len: int, size: int) -> None:
    assert lookahead_size(draft_len) == size


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"method": "lookahead", "max_draft_len": 2}, "lookahead guesses 3 tokens a step at least, not 2"),
        ({"method": "medusa", "checkpoint": "heads", "max_draft_len": 4}, "Medusa's guesses has 63 nodes, not 4"),
    ],
)
def test_a_draft_length_that_no_parameter_fits_is_refused_before_anything_is_built(
    speculation: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        check_plan(plan_for("tensorrt", speculation=speculation), LLAMA_8B)


def test_logits_have_the_type_that_the_engine_gives_them() -> None:
    def of(**engine: Any) -> str:
        return tables.placeholders(deployed(plan_for("tensorrt", **engine)))["logits_datatype"]

    assert of() == "TYPE_FP32"
    assert of(build_args={"logits_dtype": "float16"}) == "TYPE_FP16"
