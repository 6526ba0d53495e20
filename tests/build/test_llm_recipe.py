"""The way of a plan to what the LLM API serves: which commands, in which image, with which files."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch_build.checkpoint import resolve
from conch_build.compile.pytorch import CHECKPOINT_DIR, LLM_ARGS_FILE, recipe, serve_command
from conch_build.compile.pytorch.quantize import main as quantize_main
from conch_build.compile.tensorrt.recipe import Source
from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Model, Plan, parse_plan
from conch_build.profiles import PROFILES
from conch_build.recipe import Recipe, TextFile
from tests.build.models import LLAMA_8B, SMOLLM
from tests.build.tiny import write_tiny

OUT, SOURCE = Path("/out"), Path("/models/llama")


def plan_for(engine: dict[str, Any] | None = None, **parts: Any) -> Plan:
    data = {"name": "p", "model": {"checkpoint": "x"}, "target": {"gpu": "h100"}, **parts}
    return parse_plan(yaml.safe_dump({**data, "engine": {"backend": "pytorch", **(engine or {})}}))


def made(form: str = "none", info: ModelInfo = LLAMA_8B, **parts: Any) -> Recipe:
    quantization = {"format": form, **parts.pop("quantization", {})}
    return recipe(plan_for(parts.pop("engine", None), quantization=quantization, **parts), info, SOURCE, OUT)


def refused(where: str, form: str = "none", info: ModelInfo = LLAMA_8B, **parts: Any) -> str:
    with pytest.raises(PlanError) as error:
        made(form, info, **parts)
    assert error.value.where == where
    return error.value.message


def words(steps: Recipe, program: str) -> list[str]:
    """The words of the one command that has `program` in it."""
    found = [command.argv for command in steps.commands if any(program in word for word in command.argv)]
    assert len(found) == 1
    return list(found[0])


def test_the_arguments_lie_beside_the_checkpoint() -> None:
    files = [step for step in made().steps if isinstance(step, TextFile)]
    assert [file.path for file in files] == [str(OUT / LLM_ARGS_FILE), str(OUT / "trtllm-serve.sh")]
    assert yaml.safe_load(files[0].text)["max_batch_size"] == 64


@pytest.mark.parametrize("form", ["none", "fp8", "int4_awq"])
def test_formats_that_need_no_gpu_are_made_on_this_machine(form: str) -> None:
    steps = made(form)
    assert all(command.image is None for command in steps.commands)
    argv = words(steps, "pytorch.quantize")
    assert argv[3:7] == [str(SOURCE), str(OUT / CHECKPOINT_DIR), "--format", form]
    assert ("--samples" in argv) == (form != "none")


def test_groups_of_weights_are_those_that_a_gpu_has_kernels_for() -> None:
    assert words(made("int4_awq"), "pytorch.quantize")[7:9] == ["--group-size", "128"]
    assert words(made("int4_awq", SMOLLM), "pytorch.quantize")[7:9] == ["--group-size", "64"]


def test_nvfp4_is_made_by_modelopts_own_script_in_tensorrt_llms_image() -> None:
    steps = made("nvfp4", target={"gpu": "b200"})
    clone, quantize = steps.commands[:2]
    assert clone.argv[:2] == ("git", "clone") and "0.37.0" in clone.argv
    assert quantize.image == "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    argv = words(steps, "hf_ptq.py")
    for flag, value in (("--qformat", "nvfp4"), ("--kv_cache_qformat", "fp8"), ("--calib_size", "64")):
        assert argv[argv.index(flag) + 1] == value
    assert PROFILES["1.2.1"].flag_problems("hf_ptq.py", argv[2:]) == []


def test_modelopts_script_is_never_left_to_its_own_default_for_the_cache() -> None:
    argv = words(made("nvfp4", quantization={"kv_cache": "bf16"}), "hf_ptq.py")
    assert argv[argv.index("--kv_cache_qformat") + 1] == "none"
    argv = words(made("nvfp4", quantization={"kv_cache": "nvfp4"}), "hf_ptq.py")
    assert argv[argv.index("--kv_cache_qformat") + 1] == "nvfp4"


def test_modelopts_script_takes_no_texts_of_the_plan() -> None:
    data = {"calibration": {"data": "/texts.txt"}}
    assert "its own data sets" in refused("quantization.calibration.data", "nvfp4", quantization=data)
    assert "/texts.txt" in words(made("fp8", quantization=data), "pytorch.quantize")


def test_hf_ptq_reads_an_open_data_set_and_as_much_of_it_as_its_release_can_be_told() -> None:
    argv = words(made("nvfp4"), "hf_ptq.py")
    assert argv[argv.index("--dataset") + 1] == "cnn_dailymail" and "--calib_seq" not in argv
    longer = {"calibration": {"max_length": 1024}}
    assert "reads 512 tokens" in refused("quantization.calibration.max_length", "nvfp4", quantization=longer)
    later = {"gpu": "b200", "tensorrt_llm": "1.3.0rc24"}
    argv = words(made("nvfp4", quantization=longer, target=later), "hf_ptq.py")
    assert argv[argv.index("--calib_seq") + 1] == "1024"


def test_disaggregated_workers_get_no_arguments_of_a_single_server() -> None:
    steps = made("fp8", serving={"disaggregated": {"context": {"tensor": 2}}})
    assert [step for step in steps.steps if isinstance(step, TextFile)] == []


@pytest.mark.parametrize("form", ["int8", "int8_sq"])
def test_formats_without_kernels_are_refused_by_name(form: str) -> None:
    assert form in refused("quantization.format", form)


def test_a_cache_in_nvfp4_needs_weights_in_it() -> None:
    assert "nvfp4 weights" in refused("quantization.kv_cache", "fp8", quantization={"kv_cache": "nvfp4"})


def test_a_checkpoint_that_comes_quantized_is_served_as_it_is() -> None:
    steps = made(info=replace(LLAMA_8B, quantization={"quant_algo": "FP8"}))
    assert words(steps, "pytorch.quantize")[5:] == ["--format", "none"]


def test_a_draft_model_is_checked_and_named_where_it_was_found() -> None:
    plan = plan_for({"speculation": {"method": "draft", "checkpoint": "owner/small"}})
    draft = Source(plan, LLAMA_8B, Path("/cache/small"))
    files = [step for step in recipe(plan, LLAMA_8B, SOURCE, OUT, draft=draft).steps if isinstance(step, TextFile)]
    assert yaml.safe_load(files[0].text)["speculative_config"]["speculative_model_dir"] == "/cache/small"
    with pytest.raises(PlanError, match="vocabulary"):
        recipe(plan, LLAMA_8B, SOURCE, OUT, draft=Source(plan, SMOLLM, Path("/cache/small")))


def test_the_tokenizer_lies_beside_it_for_those_who_read_text(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny")
    steps = recipe(plan_for({"max_seq_len": 512}), resolve(Model(checkpoint=str(tiny))).info, tiny, OUT)
    assert str(tiny / "tokenizer.json") in words(steps, "install")


def test_serving_by_trtllm_serve_says_where_to_listen_and_leaves_the_rest_to_the_file() -> None:
    command = serve_command(plan_for(), Path("/out/checkpoint"), Path("/out/llm_args.yaml"), port=9000)
    assert command.argv == (
        *("trtllm-serve", "/out/checkpoint", "--host", "127.0.0.1", "--port", "9000", "--backend", "pytorch"),
        *("--extra_llm_api_options", "/out/llm_args.yaml"),
    )
    assert command.image == PROFILES["1.2.1"].container


def test_an_engine_is_served_by_its_own_script_wherever_it_lies(tmp_path: Path) -> None:
    folder, bin_ = tmp_path / "an engine", tmp_path / "bin"
    folder.mkdir()
    bin_.mkdir()
    (bin_ / "trtllm-serve").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (bin_ / "trtllm-serve").chmod(0o755)
    script = next(step for step in made().steps if isinstance(step, TextFile) and step.path.endswith(".sh"))
    (folder / "trtllm-serve.sh").write_text(script.text)

    def served(*words: str) -> list[str]:
        env = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
        command = ["sh", str(folder / "trtllm-serve.sh"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()

    assert served() == [
        *(str(folder / CHECKPOINT_DIR), "--host", "127.0.0.1", "--port", "8000", "--backend", "pytorch"),
        *("--extra_llm_api_options", str(folder / LLM_ARGS_FILE)),
    ]
    assert served("0.0.0.0", "9000")[1:5] == ["--host", "0.0.0.0", "--port", "9000"]


def test_ranks_on_several_machines_are_started_by_slurm() -> None:
    argv = serve_command(plan_for({"parallel": {"tensor": 8, "pipeline": 2}}), Path("/m"), Path("/a.yaml")).argv
    assert argv[:6] == ("srun", "--mpi=pmix", "-n", "16", "--ntasks-per-node", "8")
    assert argv[6:8] == ("trtllm-llmapi-launch", "trtllm-serve")


@pytest.mark.slow
def test_the_quantizing_step_runs_and_leaves_what_the_llm_api_reads(tmp_path: Path) -> None:
    tiny = write_tiny(tmp_path / "tiny", dtype="bfloat16")
    out = tmp_path / "out" / CHECKPOINT_DIR
    quantize_main([str(tiny), str(out), "--format", "fp8", "--samples", "2", "--max-length", "32"])
    assert {"hf_quant_config.json", "config.json", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    assert (resolve(Model(checkpoint=str(out)), backend="pytorch").info.quantization or {})["quant_algo"] == "FP8"
