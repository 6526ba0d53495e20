"""An engine directory is read back before it is served: all that differs from the plan is said at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build.compile.gpu_manifest import gpu_manifest
from conch_build.compile.tensorrt.engine_config import check_engine, differences, read_engine
from conch_build.errors import CompileError
from conch_build.manifest import GpuEngineManifest, GpuParallel
from conch_build.plan import Plan
from tests.build.models import LLAMA_8B, engine_json

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def wanted(modules: tuple[str, ...] = (), group_size: int | None = None, **plan: Any) -> GpuEngineManifest:
    document = {
        "name": "llama",
        "model": {"checkpoint": "/models/llama"},
        "target": {"gpu": "h100"},
        "quantization": {"format": "fp8"},
        **plan,
    }
    document["engine"] = {"backend": "tensorrt", **plan.get("engine", {})}
    settled = Plan.model_validate(document)
    return gpu_manifest(settled, LLAMA_8B, release="1.2.1", container=IMAGE, modules=modules, group_size=group_size)


def write_engine(folder: Path, config: dict[str, Any], ranks: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder


def problems(folder: Path, manifest: GpuEngineManifest, release: str = "1.2.1") -> list[str]:
    return list(differences(read_engine(folder), manifest, release))


def test_the_engine_that_was_asked_for_has_no_differences(tmp_path: Path) -> None:
    check_engine(write_engine(tmp_path / "e", engine_json()), wanted())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "1.2.0"}, "it was built by TensorRT-LLM 1.2.0, and only that release reads it; this is 1.2.1"),
        ({"pretrained_config__mapping__tp_size": 2}, "tp_size is 2 instead of 1"),
        ({"pretrained_config__mapping__pp_size": 2}, "pp_size is 2 instead of 1"),
        ({"pretrained_config__dtype": "float16"}, "dtype is float16 instead of bfloat16"),
        ({"pretrained_config__quantization__quant_algo": None}, "quant_algo is none instead of FP8"),
        (
            {"pretrained_config__quantization__kv_cache_quant_algo": "INT8"},
            "kv_cache_quant_algo is INT8 instead of FP8",
        ),
        ({"pretrained_config__vocab_size": 32000}, "vocab_size is 32000 instead of 128256"),
        ({"build_config__max_batch_size": 8}, "max_batch_size is 8 instead of 64"),
        ({"build_config__max_num_tokens": 8192}, "max_num_tokens is 8192 instead of 2048"),
        ({"build_config__max_seq_len": 2048}, "max_seq_len is 2048 instead of 4096"),
        ({"build_config__kv_cache_type": "CONTINUOUS"}, "kv_cache_type is continuous instead of paged"),
        ({"build_config__plugin_config__remove_input_padding": False}, "remove_input_padding is False instead of True"),
        ({"build_config__plugin_config__use_paged_context_fmha": False}, "use_paged_context_fmha is False"),
        ({"build_config__plugin_config__tokens_per_block": 64}, "tokens_per_block is 64 instead of 32"),
        ({"build_config__plugin_config__lora_plugin": "bfloat16"}, "lora_plugin is bfloat16 instead of none"),
        ({"build_config__speculative_decoding_mode": 4}, "speculative_decoding_mode is medusa instead of none"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_difference_is_named_with_both_values(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (found,) = problems(write_engine(tmp_path / "e", engine_json(**changes)), wanted())
    assert said in found


def test_every_difference_is_told_at_once_with_the_folder_and_the_fix(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "e", engine_json(version="1.1.0", build_config__max_seq_len=1))
    with pytest.raises(CompileError) as refused:
        check_engine(folder, wanted())
    message = refused.value.message
    assert "1.1.0" in message and "max_seq_len" in message
    assert message.startswith(f"{folder}: ") and message.endswith("`conch build --force`.")


def test_the_release_of_the_serving_image_is_what_counts(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "e", engine_json())
    with pytest.raises(CompileError, match=r"this is 1\.2\.0"):
        check_engine(folder, wanted(), release="1.2.0")


@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_there_is_one_rank_file_a_gpu(tmp_path: Path, ranks: int) -> None:
    config = engine_json(pretrained_config__mapping__tp_size=2)
    manifest = wanted().model_copy(update={"parallel": GpuParallel(tensor=2)})
    (found,) = problems(write_engine(tmp_path / "e", config, ranks), manifest)
    assert "it should have 2 rank files" in found
    assert not problems(write_engine(tmp_path / "whole", config, 2), manifest)


def test_a_vocabulary_may_be_padded_to_split_over_gpus(tmp_path: Path) -> None:
    manifest = wanted().model_copy(update={"parallel": GpuParallel(tensor=5)})
    config = engine_json(pretrained_config__vocab_size=128260, pretrained_config__mapping__tp_size=5)
    assert not problems(write_engine(tmp_path / "e", config, 5), manifest)


@pytest.mark.parametrize(("form", "fits"), [("int4_awq", True), ("fp8", False)])
def test_a_vocabulary_is_padded_to_64_for_awq(tmp_path: Path, form: str, fits: bool) -> None:
    manifest = wanted(quantization={"format": form, "kv_cache": "fp8"}).model_copy(update={"vocab_size": 128_201})
    config = engine_json(pretrained_config__quantization__quant_algo={"int4_awq": "W4A16_AWQ", "fp8": "FP8"}[form])
    found = problems(write_engine(tmp_path / "e", config), manifest)
    assert found == ([] if fits else ["vocab_size is 128256 instead of 128201"])


def test_an_engine_without_reuse_or_chunks_may_read_prompts_either_way(tmp_path: Path) -> None:
    manifest = wanted(engine={"chunked_prefill": False, "kv_cache": {"reuse": False}})
    config = engine_json(build_config__plugin_config__use_paged_context_fmha=False)
    assert not problems(write_engine(tmp_path / "e", config), manifest)


@pytest.mark.parametrize("mode", [2, "DRAFT_TOKENS_EXTERNAL", "draft_tokens_external"])
def test_speculation_is_read_as_a_number_or_a_name(tmp_path: Path, mode: int | str) -> None:
    manifest = wanted(engine={"speculation": {"method": "draft", "checkpoint": "/d", "max_draft_len": 5}})
    config = engine_json(
        build_config__speculative_decoding_mode=mode, build_config__max_draft_len=5, build_config__max_seq_len=4101
    )
    assert not problems(write_engine(tmp_path / "e", config), manifest)
    config["build_config"]["max_draft_len"] = 4
    assert problems(write_engine(tmp_path / "e", config), manifest) == ["max_draft_len is 4 instead of 5"]


def test_what_is_verified_in_a_step_is_room_beyond_what_was_asked_for(tmp_path: Path) -> None:
    manifest = wanted(engine={"speculation": {"method": "medusa", "checkpoint": "/d", "max_draft_len": 63}})
    config = engine_json(
        build_config__speculative_decoding_mode=4,
        build_config__max_draft_len=63,
        build_config__max_seq_len=4096 + 63,
        build_config__max_num_tokens=64 * 64,
    )
    assert not problems(write_engine(tmp_path / "e", config), manifest)
    assert problems(
        write_engine(tmp_path / "short", config | {"build_config": engine_json()["build_config"]}), manifest
    )


def test_adapters_need_their_plugin_rank_and_modules(tmp_path: Path) -> None:
    manifest = wanted(("attn_q", "attn_v"), engine={"lora": {"max_rank": 8}})
    config = engine_json(
        build_config__plugin_config__lora_plugin="bfloat16",
        build_config__lora_config={"max_lora_rank": 8, "lora_target_modules": ["attn_v", "attn_q"]},
    )
    assert not problems(write_engine(tmp_path / "e", config), manifest)
    assert problems(write_engine(tmp_path / "without", engine_json()), manifest) == [
        "lora_plugin is none instead of bfloat16",
        "max_lora_rank is 64 instead of 8",
        "lora_target_modules is none instead of attn_q, attn_v",
    ]


def test_awq_engines_have_the_group_of_their_plan(tmp_path: Path) -> None:
    manifest = wanted(group_size=64, quantization={"format": "int4_awq"})
    config = engine_json(
        pretrained_config__quantization={"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": None, "group_size": 128}
    )
    assert problems(write_engine(tmp_path / "e", config), manifest) == ["group_size is 128 instead of 64"]


@pytest.mark.parametrize("config", [{}, {"architecture": "LlamaForCausalLM", "dtype": "float16"}, None])
def test_a_folder_that_holds_no_engine_is_refused(tmp_path: Path, config: dict[str, Any] | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CompileError, match="is not the engine that was asked for"):
        read_engine(tmp_path)
