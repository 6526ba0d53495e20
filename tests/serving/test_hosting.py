"""`conch serve` of plans for GPUs: what a machine lacks, what cannot be served yet, the engine held to its plan."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch.cli import main
from conch.gateway.settings import ModelSettings
from conch.hosting import check_engine, hosting_of
from conch.triton.probe import OWN_PROBE
from conch_build.errors import CompileError, PlanError
from conch_build.gpu.installed import installed_gpus
from conch_build.manifest import ENGINE_DIR, GpuAdapter, GpuLora
from conch_build.plan import Plan, parse_plan
from tests.build.models import engine_json
from tests.build.test_engine_config import wanted, write_engine

no_gpu = pytest.mark.skipif(bool(installed_gpus()), reason="there is a GPU")


def plan(backend: str, serving: str = "", engine: str = "") -> Plan:
    return parse_plan(
        f"{{name: m, model: {{checkpoint: sample}}, target: {{gpu: h100}}, engine: {{backend: {backend}, {engine}}},"
        f" serving: {{{serving}}}}}"
    )


def test_a_plan_for_cpus_is_hosted_as_ever() -> None:
    hosting = hosting_of(plan("openvino"))
    assert (hosting.install, hosting.arrangement.uses_mpi, hosting.probe) == (None, False, OWN_PROBE)


@no_gpu
@pytest.mark.parametrize("backend", ["tensorrt", "pytorch"])
def test_serving_a_gpu_plan_here_says_what_is_missing_before_anything_is_built(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "conch.yaml"
    path.write_text(
        f"{{name: m, model: {{checkpoint: sample}}, target: {{gpu: h100}}, engine: {{backend: {backend}}}}}"
    )
    done = CliRunner().invoke(main, ["serve", str(path), "--json"])
    assert done.exit_code == 4, done.output
    error = json.loads(done.output)
    assert error["error"] == "SetupError"
    assert f"cannot serve a plan for the backend `{backend}`: no NVIDIA GPU" in error["what"]
    assert "`conch deploy compose`" in error["fix"] and "`conch build --dry-run`" in error["fix"]


@pytest.mark.parametrize(
    ("serving", "sentence"),
    [
        ("disaggregated: {}", "disaggregated workers are `trtllm-serve`. Start them with the script"),
        ("triton: {layout: llmapi}", "it speaks token ids, which the layout `llmapi` does not take"),
    ],
)
def test_what_the_gateway_cannot_stand_before_is_said(serving: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        hosting_of(plan("pytorch", serving))


def test_an_engine_over_several_nodes_is_not_started_here() -> None:
    with pytest.raises(PlanError, match=r"needs 2 nodes.*`conch deploy slurm`"):
        hosting_of(plan("tensorrt", engine="parallel: {tensor: 8, pipeline: 2}"))


def test_an_engine_is_held_to_its_record_before_it_is_served(tmp_path: Path) -> None:
    wanted().save(tmp_path)
    write_engine(tmp_path / ENGINE_DIR, engine_json())
    check_engine(plan("tensorrt"), tmp_path)
    write_engine(tmp_path / ENGINE_DIR, {**engine_json(), "version": "1.1.0"})
    with pytest.raises(CompileError, match=r"built by TensorRT-LLM 1\.1\.0, and only that release reads it"):
        check_engine(plan("tensorrt"), tmp_path)


def test_the_gateway_knows_a_gpu_engine_by_its_record(tmp_path: Path) -> None:
    lora = GpuLora(max_rank=8, target_modules=["attn_q"], adapters=[GpuAdapter(name="terse", id=1)])
    engine = wanted().model_copy(update={"lora": lora})
    engine.save(tmp_path)
    settings = ModelSettings.for_engine(tmp_path, [])
    assert settings.max_seq_len == engine.limits.max_seq_len
    assert settings.end_ids == tuple(engine.end_ids)
    assert settings.adapters == {"terse": 1}
    assert settings.top_candidates == 0
    assert os.fspath(settings.tokenizer) == str(tmp_path / "tokenizer")
