"""`conch build --dry-run`: what would be done, with nothing done."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conch_build.cli import build_commands
from conch_build.dry_run import DryRun, dry_run
from conch_build.errors import CheckError
from conch_build.pipeline import build
from conch_build.plan import Plan
from conch_build.store import Store

ENGINE = {"max_seq_len": 128, "max_num_tokens": 128, "max_batch_size": 4, "kv_cache": {"size": "16MiB"}}

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "hidden_act": "silu",
}


def cpu_plan(checkpoint: Path, **engine: Any) -> Plan:
    document = {"name": "tiny", "model": {"checkpoint": str(checkpoint)}, "quantization": {"format": "int8"}}
    return Plan.model_validate({**document, "engine": {**ENGINE, **engine}})


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A checkpoint that is its config.json alone, as a plan for GPUs may name it."""
    folder = tmp_path / "Llama-3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    return folder


def gpu_plan(checkpoint: Path, **changes: Any) -> Plan:
    document: dict[str, Any] = {
        "name": "llama",
        "model": {"checkpoint": str(checkpoint)},
        "target": {"gpu": "h100"},
        "quantization": {"format": "fp8"},
        **changes,
    }
    document["engine"] = {"backend": "tensorrt", **changes.get("engine", {})}
    return Plan.model_validate(document)


def states(result: DryRun) -> dict[str, str]:
    return {note.split()[0]: note.split(": ", 1)[1] for note in result.notes}


def test_a_cpu_build_says_a_line_a_stage_and_makes_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert states(dry_run(cpu_plan(tiny_llama), store)) == {
        "quantized": "would be built: int8 weights by ModelOpt",
        "engine": "would be built: compiled by OpenVINO",
        "repository": "would be built: the engine packed for Triton",
    }
    assert not store.root.exists()


def test_what_is_built_already_is_reused_and_only_what_a_change_decides_is_not(
    tiny_llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    store = Store(tmp_path / "store")
    built = build(cpu_plan(tiny_llama), store)
    assert set(states(dry_run(cpu_plan(tiny_llama), store)).values()) == {"reused"}
    assert [note.split()[1].rstrip(":") for note in dry_run(cpu_plan(tiny_llama), store).notes] == [
        artifact.path.name for artifact in built.artifacts
    ]
    changed = states(dry_run(cpu_plan(tiny_llama, max_batch_size=2), store))
    assert changed["quantized"] == "reused" and changed["engine"].startswith("would be built")


def test_a_gpu_build_needs_no_weights_and_is_a_script_that_a_shell_reads(described: Path, tmp_path: Path) -> None:
    script = dry_run(gpu_plan(described), out=tmp_path / "out").text()
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    programs = [line.split("/")[-1] for line in script.splitlines() if "quantize.py" in line or "trtllm-build" in line]
    assert programs[:2] == ["quantize.py \\", "trtllm-build \\"]
    assert not (tmp_path / "out").exists()


def test_the_script_says_what_is_packed_and_what_starts_it(described: Path, tmp_path: Path) -> None:
    notes = "\n".join(dry_run(gpu_plan(described), out=tmp_path / "out").notes)
    assert "tensorrt_llm: tensorrtllm" in notes
    assert f"{tmp_path}/out/engine" in notes
    assert f"--model-repository={tmp_path}/out/repository" in notes


def test_the_record_of_the_engine_is_part_of_the_script(described: Path, tmp_path: Path) -> None:
    (record,) = (s for s in dry_run(gpu_plan(described), out=tmp_path / "out").as_dict()["steps"] if "path" in s)
    written = json.loads(record["text"])
    assert record["path"] == f"{tmp_path}/out/engine.json"
    assert (written["tensorrt_llm"], written["gpu"], written["dtype"]) == ("1.2.1", "h100", "bfloat16")


def test_a_draft_models_engine_has_a_record_of_its_own(described: Path, tmp_path: Path) -> None:
    engine = {"speculation": {"method": "draft", "checkpoint": str(described), "max_draft_len": 3}}
    steps = dry_run(gpu_plan(described, engine=engine), out=tmp_path / "out").as_dict()["steps"]
    assert [s["path"] for s in steps if "path" in s] == [f"{tmp_path}/out/{name}engine.json" for name in ("", "draft/")]


def test_a_plan_that_cannot_work_is_refused_as_a_build_refuses_it(described: Path) -> None:
    with pytest.raises(CheckError, match="the plan cannot work"):
        dry_run(gpu_plan(described, engine={"max_seq_len": 1_000_000}))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_commands, ["build", *arguments])


@pytest.fixture
def plan_file(described: Path, tmp_path: Path) -> Path:
    path = tmp_path / "conch.yaml"
    path.write_text(gpu_plan(described).model_dump_json(include={"name", "model"}))
    document = json.loads(path.read_text()) | {
        "target": {"gpu": "h100"},
        "quantization": {"format": "fp8"},
        "engine": {"backend": "tensorrt"},
    }
    path.write_text(json.dumps(document))
    return path


def test_the_command_prints_the_script_alone_on_stdout(plan_file: Path) -> None:
    result = run(str(plan_file), "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("#!/bin/sh\nset -eu\n")
    assert "LlamaForCausalLM" in result.stderr


def test_the_command_prints_every_step_as_json(plan_file: Path) -> None:
    report = json.loads(run(str(plan_file), "--dry-run", "--json").stdout)
    assert report["backend"] == "tensorrt"
    build_step = next(step for step in report["steps"] if step.get("argv", [""])[0] == "trtllm-build")
    assert build_step["image"].startswith("nvcr.io/nvidia/tritonserver:")
    assert "--max_batch_size" in build_step["argv"]
