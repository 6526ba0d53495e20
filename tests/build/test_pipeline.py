"""The whole build of a tiny model: which change builds what again, and how the commands tell of it."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conch_build.cli import build_commands
from conch_build.errors import CheckError, SetupError
from conch_build.manifest import EngineManifest
from conch_build.pipeline import BuildResult, build
from conch_build.plan import Plan
from conch_build.store import Artifact, Store

for library in ("torch", "modelopt", "openvino"):
    pytest.importorskip(library)

ENGINE = {"max_seq_len": 128, "max_num_tokens": 128, "max_batch_size": 4, "kv_cache": {"size": "16MiB"}}


def plan_of(checkpoint: Path, **changes: dict[str, Any] | str) -> Plan:
    document: dict[str, Any] = {
        "name": "tiny",
        "model": {"checkpoint": str(checkpoint)},
        "quantization": {"format": "int8"},
        "engine": ENGINE,
    }
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return Plan.model_validate(document)


class Built:
    """A store with one finished build in it; `again` says what another build reuses of it."""

    def __init__(self, checkpoint: Path, root: Path) -> None:
        self.checkpoint = checkpoint
        self.root = root / "store"
        self.said: list[str] = []
        self.result = build(plan_of(checkpoint), Store(self.root), say=self.said.append)

    def again(self, plan: Plan) -> dict[str, bool]:
        result = build(plan, Store(self.root))
        return {artifact.kind: artifact.reused for artifact in result.artifacts}


@pytest.fixture(scope="module")
def built(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("pipeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCH_HOME", str(root))
        return Built(tiny_llama, root)


@pytest.fixture(autouse=True)
def conch_home(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCH_HOME", str(built.root.parent))


def test_a_build_ends_with_a_repository_and_says_a_line_a_stage(built: Built) -> None:
    assert (built.result.repository.path / "tensorrt_llm" / "config.pbtxt").is_file()
    assert [line.split()[0] for line in built.said] == ["checkpoint", "quantized", "engine", "repository"]
    assert all("built in" in line for line in built.said[1:])


def test_the_engine_says_where_it_comes_from(built: Built) -> None:
    engine = EngineManifest.load(built.result.engine.path)
    assert engine.checkpoint.source == str(built.checkpoint)
    assert engine.checkpoint.sha256 == built.result.checkpoint.sha256
    assert engine.quantization.format == "int8"
    assert engine.quantization.producer is not None and engine.quantization.producer.startswith("modelopt")
    assert set(engine.build_seconds) >= {"quantize", "compile"}
    assert {"openvino", "nvidia-modelopt"} <= set(engine.versions)


@pytest.mark.parametrize(
    ("changes", "reused"),
    [
        ({}, {"quantized": True, "engine": True, "repository": True}),
        ({"serving": {"gateway": {"port": 9000}}}, {"quantized": True, "engine": True, "repository": True}),
        ({"slo": {"ttft_p95": "1s"}}, {"quantized": True, "engine": True, "repository": True}),
        (
            {"serving": {"triton": {"layout": "tokens"}}},
            {"quantized": True, "engine": True, "repository": False},
        ),
        (
            {"engine": {**ENGINE, "stream_interval": 4}},
            {"quantized": True, "engine": True, "repository": False},
        ),
        ({"engine": {"max_batch_size": 3}}, {"quantized": True, "engine": False, "repository": False}),
        ({"name": "renamed"}, {"quantized": True, "engine": False, "repository": False}),
        (
            {"quantization": {"calibration": {"samples": 3}}},
            dict.fromkeys(("quantized", "engine", "repository"), True),
        ),
        (
            {"quantization": {"format": "none"}},
            {"quantized": False, "engine": False, "repository": False},
        ),
    ],
    ids=[
        "nothing",
        "gateway port",
        "slo",
        "layout",
        "stream interval",
        "batch size",
        "name",
        "unused calibration",
        "format",
    ],
)
def test_a_change_builds_again_only_what_it_decides(
    built: Built, changes: dict[str, Any], reused: dict[str, bool]
) -> None:
    assert built.again(plan_of(built.checkpoint, **changes)) == reused


def test_a_build_resumes_at_the_first_missing_stage(built: Built) -> None:
    plan = plan_of(built.checkpoint, name="resumed")
    first = build(plan, Store(built.root))
    Store(built.root).remove(first.repository)
    assert built.again(plan) == {"quantized": True, "engine": True, "repository": False}
    shutil.rmtree(first.engine.path)
    assert built.again(plan) == {"quantized": True, "engine": False, "repository": True}


def test_a_changed_checkpoint_builds_everything_again(built: Built, checkpoint: Path, tmp_path: Path) -> None:
    before = build(plan_of(checkpoint), Store(tmp_path / "store"))
    generation = checkpoint / "generation_config.json"
    generation.write_text(json.dumps({**json.loads(generation.read_text()), "temperature": 0.5, "do_sample": True}))
    after = build(plan_of(checkpoint), Store(tmp_path / "store"))
    assert [artifact.reused for artifact in after.artifacts] == [False, False, False]
    assert before.engine.key != after.engine.key


def test_a_plan_that_cannot_work_is_refused_before_anything_is_built(built: Built, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="the plan cannot work"):
        build(plan_of(built.checkpoint, engine={"max_seq_len": 100_000}), Store(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_commands, list(arguments))


@pytest.fixture
def plan_file(built: Built, tmp_path: Path) -> Path:
    path = tmp_path / "conch.yaml"
    path.write_text(plan_of(built.checkpoint).model_dump_json(include={"name", "model", "quantization"}))
    document = {**json.loads(path.read_text()), "engine": ENGINE}
    path.write_text(json.dumps(document))
    return path


def test_the_build_command_prints_the_repository(built: Built, plan_file: Path) -> None:
    result = run("build", str(plan_file))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{built.result.repository.path}\n"
    assert result.stderr.count("reused") == 3


def test_the_build_command_prints_json(built: Built, plan_file: Path) -> None:
    report = json.loads(run("build", str(plan_file), "--json").stdout)
    assert report["artifacts"]["engine"]["path"] == str(built.result.engine.path)
    assert report["artifacts"]["engine"]["reused"] is True


def test_artifacts_are_listed_verified_and_removed(built: Built) -> None:
    result = build(plan_of(built.checkpoint, name="doomed"), Store(built.root))
    assert result.engine.label in run("artifacts", "list").stdout
    assert all("reused" not in row for row in json.loads(run("artifacts", "list", "--json").stdout))
    assert run("artifacts", "verify", "engine/nothing", result.engine.label).exit_code == 2
    assert run("artifacts", "verify", "engine/doomed").stdout == f"{result.engine.label}: ok\n"

    spoil(result)
    damaged = run("artifacts", "verify", result.engine.label)
    assert damaged.exit_code == 3
    assert "engine.json has changed" in damaged.stdout
    assert f"`conch artifacts remove {result.engine.label}`, then build again" in damaged.stdout

    with Artifact.load(result.engine.path).hold():
        refused = run("artifacts", "remove", result.engine.label)
        assert refused.exit_code == 3 and "in use" in refused.stderr
    assert run("artifacts", "remove", result.engine.label).exit_code == 0
    assert not result.engine.path.exists()


def spoil(result: BuildResult) -> None:
    """One other byte in a file of the engine, its size unchanged."""
    path = result.engine.path / "engine.json"
    path.write_text(path.read_text().replace('"doomed"', '"Doomed"'))


def test_remove_wants_names_or_all(built: Built) -> None:
    assert run("artifacts", "remove").exit_code == 2


def test_a_build_without_the_extra_says_which_one_to_install(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_installed(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("conch_build.stages.version", nothing_installed)
    plan = plan_of(built.checkpoint, quantization={"format": "int8"})
    with pytest.raises(SetupError, match=r"`nvidia-modelopt` is missing. pip install '.\[build\]' in"):
        build(plan, Store(built.root))
