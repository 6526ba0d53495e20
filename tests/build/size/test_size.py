"""`conch size` as people run it, against what the CPU engine allocates and what others measured on GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conch_build.checkpoint import resolve
from conch_build.cli import build_commands
from conch_build.gpu.cards import GPUS
from conch_build.gpu.memory import gpu_memory
from conch_build.machine import free_memory_bytes
from conch_build.manifest import EngineManifest
from conch_build.pipeline import BuildResult
from conch_build.plan import load_plan, parse_plan
from conch_build.size.cpu import cpu_weight_bytes
from conch_build.size.fleet import choices
from conch_build.size.report import Workload
from conch_build.size.source import changed, model_named
from tests.build.configs import CONFIGS, described, write_config
from tests.conftest import SAMPLE_PLAN


def conch(*arguments: object) -> Result:
    """Each argument may be several, as one writes them."""
    return CliRunner().invoke(build_commands, ["size", *(word for some in arguments for word in str(some).split())])


def sized(*arguments: object) -> Any:
    done = conch(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_bare_numbers_are_exact() -> None:
    numbers = "--layers 32 --kv-heads 8 --head-dim 128 --tokens 8192 --requests 256 --kv-dtype bf16"
    assert sized(numbers)["kv"]["bytes"] == 274_877_906_944
    assert "256.00 GiB (274,877,906,944 bytes)" in conch(numbers).output


def test_bare_numbers_round_to_blocks() -> None:
    report = sized("--layers 1 --kv-heads 1 --head-dim 1 --tokens 33 --block 32")
    assert (report["kv"]["blocks"], report["kv"]["bytes"]) == (2, 64 * 4)


def test_a_window_is_told_both_ways_and_which_one_counts() -> None:
    done = conch(
        *[
            "--layers",
            "36",
            "--kv-heads",
            "8",
            "--head-dim",
            "64",
            "--window",
            "128",
            "--window-every",
            "2",
            "--tokens",
            "4096",
        ]
    )
    assert "past its window 36,864 bytes a token and 4,718,592 bytes" in done.output
    assert "with full pages 73,728 bytes a token" in done.output
    assert "here the engine keeps every page" in done.output


def test_engines_of_tensorrt_give_pages_behind_a_window_back(tmp_path: Path) -> None:
    keys = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}
    write_config(tmp_path, **keys)
    (tmp_path / "plan.yaml").write_text(
        "{name: m, model: {checkpoint: .}, engine: {backend: tensorrt, max_seq_len: 8192}, target: {gpu: h100}}"
    )
    engine, llm_api = sized(tmp_path / "plan.yaml"), sized(tmp_path, "--gpu", "h100", "--tokens", 8192)
    assert (engine["kv"]["pages"], llm_api["kv"]["pages"]) == ("window", "full")
    assert engine["memory"]["requests"] > 8 * llm_api["memory"]["requests"]
    plan = load_plan(tmp_path / "plan.yaml")
    held = gpu_memory(
        plan, resolve(plan.model, backend="tensorrt", needs_weights=False).info, GPUS["h100"].memory_bytes
    )
    assert held.requests == engine["memory"]["requests"], "`conch check` and `conch size` say other numbers"


def test_latent_attention_by_bare_numbers() -> None:
    assert sized("--layers 61 --latent 512 --rope-dim 64")["kv"]["bytes_per_token"] == 70_272


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    write_config(tmp_path, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    for what in (tmp_path, tmp_path / "config.json"):
        assert sized(what, "--kv-dtype", "bf16")["kv"]["bytes_per_token"] == 8192


def test_a_plan_of_the_cpu_is_sized_as_its_engine_allocates(sample_build: BuildResult, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(SAMPLE_PLAN)
    report = sized(tmp_path / "plan.yaml")
    manifest = EngineManifest.load(sample_build.engine.path)
    assert report["kv"]["block_bytes"] == manifest.kv_block_bytes
    assert report["memory"]["kv_blocks"] == manifest.num_blocks(free_memory_bytes())
    stored = (sample_build.engine.path / "model.bin").stat().st_size
    assert report["memory"]["parts"]["weights"] == pytest.approx(stored, rel=0.005)


def test_a_running_cpu_engine_reports_and_holds_these_blocks(sample_build: BuildResult, tmp_path: Path) -> None:
    from conch.engine.core import Engine
    from conch.engine.runner import OpenVINORunner

    (tmp_path / "plan.yaml").write_text(SAMPLE_PLAN)
    report = sized(tmp_path / "plan.yaml")
    with Engine.load(sample_build.engine.path) as engine:
        stats, runner = engine.stats(), engine._runner
        assert isinstance(runner, OpenVINORunner)
        allocated = sum(cache.nbytes for cache in runner._caches)
    assert stats.kv_blocks_total == report["memory"]["kv_blocks"]
    assert stats.tokens_per_block == report["kv"]["tokens_per_block"]
    assert allocated == (stats.kv_blocks_total + 1) * report["kv"]["block_bytes"]  # and one for padding
    assert report["memory"]["parts"]["KV cache"] == stats.kv_blocks_total * report["kv"]["block_bytes"]


def test_weights_of_the_cpu_by_format() -> None:
    info = described("smollm2-135m")
    sizes = [cpu_weight_bytes(info, form, 2048) for form in ("none", "int8", "int4_awq")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(2 * info.parameters, rel=0.01)  # the head is the embedding


def test_fp8_weights_as_tensorrt_llm_reports_them() -> None:
    """NVIDIA/TensorRT-LLM#6294: `Rank 0 uses 8.46 GB for model weights`, of Llama 3.1 8B in fp8 (GB: 2^30)."""
    plan = parse_plan(
        "{name: m, model: {checkpoint: unread}, engine: {backend: pytorch}, quantization: {format: fp8},"
        " target: {gpu: h100}}"
    )
    weights = gpu_memory(plan, described("llama-3-8b"), GPUS["h100"].memory_bytes).parts["weights"]
    assert weights / (1 << 30) == pytest.approx(8.46, abs=0.01)


def test_gpus_share_a_model_and_replicas_do_not() -> None:
    llama = CONFIGS / "llama-3.3-70b"
    alone = sized(llama, "--gpu", "b200", "--tokens", 4096)
    spread = sized(llama, "--gpu", "b200", "--tokens", 4096, "--tensor", 2, "--pipeline", 2, "--replicas", 3)
    assert spread["gpu"]["gpus"] == 12
    assert spread["gpu"]["kv_bytes_per_token"] * 4 == alone["gpu"]["kv_bytes_per_token"] == 327_680
    assert spread["memory"]["parts"]["weights"] < alone["memory"]["parts"]["weights"] / 3
    assert spread["kv"]["bytes"] == alone["kv"]["bytes"]


def test_the_fleet_holds_what_it_is_asked_for() -> None:
    info = described("llama-3.3-70b")
    plan = parse_plan("{name: m, model: {checkpoint: unread}, engine: {backend: pytorch}}")
    found = choices(plan, info, Workload(4096, 2048, 64))
    assert found == sorted(found, key=lambda choice: (choice.memory_bytes, choice.gpus))
    assert all(choice.requests_each * choice.replicas >= 64 for choice in found)
    assert all(choice.memory_bytes > 2 * info.parameters for choice in found)
    by_name = {choice.gpu: choice for choice in found}
    assert by_name["h100"].tensor >= 2 and by_name["b200"].tensor == 1


def test_a_rate_asks_for_more_replicas() -> None:
    info = described("llama-3-8b")
    plan = parse_plan("{name: m, model: {checkpoint: unread}, engine: {backend: pytorch}}")
    work = Workload(2048, 1024, 16)
    few, many = ({c.gpu: c.replicas for c in choices(plan, info, work, rate)} for rate in (0.1, 500))
    assert all(many[gpu] > few[gpu] for gpu in few)


def test_the_table_of_gpus_is_printed_for_people() -> None:
    done = conch(CONFIGS / "mixtral-8x7b", "--fleet", "--tokens", 4096, "--requests", 32)
    assert done.exit_code == 0, done.output
    assert "h100" in done.stdout and "at most" in done.stdout


def test_options_change_the_plan_and_are_checked_as_it_is() -> None:
    plan = parse_plan("{name: m, model: {checkpoint: sample}, engine: {kv_cache: {size: 2GiB}}}")
    other = changed(plan, {"quantization.kv_cache": "bf16", "target.gpu": None})
    assert (other.quantization.kv_cache, other.engine.kv_cache.size, other.target) == ("bf16", 2 << 30, plan.target)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{llama}", "--gpu", "h1000"], "there is no GPU `h1000` in the table. Did you mean `h100`?"),
        (["{llama}", "--tokens", "9000"], "9,000 tokens are beyond the 8,192 positions of the model"),
        (["{llama}", "--tokens", "0"], "--tokens: must be at least 1"),
        (["{llama}", "--tokens", "10", "--prompt", "11"], "a prompt of 11 is longer than the request of 10"),
        (["{llama}", "--kv-dtype", "fp7"], "`quantization.kv_cache` must be"),
        (["--layers", "32"], "--kv-heads: is missing"),
        (["--layers", "-1", "--kv-heads", "1", "--head-dim", "1"], "--layers: must be from 1"),
        (["{llama}", "--layers", "32"], "bare numbers and a model exclude each other"),
        (["./nothing"], "no such file or directory"),
        (["nothing.json"], "no such file"),
        (["--layers", "1", "--kv-heads", "1", "--head-dim", "1", "--kv-dtype", "fp7"], "no KV cache in `fp7`"),
    ],
)
def test_wrong_input_gets_one_sentence(arguments: list[str], said: str) -> None:
    done = conch(*(argument.format(llama=CONFIGS / "llama-3-8b") for argument in arguments))
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_nothing_to_size_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = conch()
    assert (done.exit_code, "give --layers" in done.stderr) == (2, True)


def test_the_sample_is_known_without_being_built() -> None:
    from conch_build.plan import Model

    assert model_named(Model(checkpoint="sample"), lambda text: None).num_layers == 30
