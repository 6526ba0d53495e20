"""`conch init`, `conch check` and `conch schema` as a person or a script runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conch_build.cli import build_commands
from conch_build.commands.init import plan_name, plan_text
from conch_build.plan import load_plan, parse_plan
from conch_build.preflight import check
from tests.build.conftest import EditJson


def conch(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_commands, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_writes_a_commented_plan_for_the_sample_without_downloading_it(tmp_path: Path) -> None:
    done = conch("init")
    assert done.exit_code == 0, done.output
    plan = load_plan("conch.yaml")
    assert (plan.name, plan.model.checkpoint, plan.engine.max_seq_len) == ("smollm2", "sample", 4096)
    assert [path.name for path in tmp_path.iterdir()] == ["conch.yaml"]
    keys = [line for line in Path("conch.yaml").read_text().splitlines() if line.startswith("  max_")]
    assert keys and all("# " in line for line in keys)


def test_init_writes_a_plan_that_passes_check(checkpoint: Path) -> None:
    assert conch("init", checkpoint, "-o", "mine.yaml").exit_code == 0
    plan = load_plan("mine.yaml")
    assert (plan.name, plan.engine.max_seq_len) == ("checkpoint", 512)
    assert check(plan) == []
    assert conch("check", "mine.yaml").output == "mine.yaml: ok\n"


def test_init_writes_relative_paths_from_the_plans_folder(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    assert conch("init", "checkpoint", "-o", "plans/conch.yaml").exit_code == 0
    assert "checkpoint: ./../checkpoint" in Path("plans/conch.yaml").read_text()
    assert check(load_plan("plans/conch.yaml")) == []


def test_init_does_not_overwrite_unless_forced() -> None:
    Path("conch.yaml").write_text("mine")
    refused = conch("init")
    assert (refused.exit_code, Path("conch.yaml").read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert conch("init", "--force").exit_code == 0
    assert load_plan("conch.yaml").name == "smollm2"


def test_init_of_a_checkpoint_that_is_not_there_is_refused() -> None:
    done = conch("init", "./nothing")
    assert done.exit_code == 2
    assert "no such file or directory" in done.stderr
    assert not Path("conch.yaml").exists()


def test_init_makes_the_kv_pool_large_enough_for_a_large_model() -> None:
    config = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 64,
        "max_position_embeddings": 131072,
    }
    assert parse_plan(plan_text("a", "b", config)).engine.kv_cache.size == 3 << 30


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("sample", "smollm2"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("/models/My Model.Q4.gguf", "my-model.q4"),
        ("/models/tiny/", "tiny"),
        ("/models/__x", "x"),
        ("/models/été", "t"),
        ("/models/###", "model"),
        ("/models/" + "x" * 90, "x" * 64),
    ],
)
def test_the_name_is_made_from_the_checkpoint(checkpoint: str, name: str) -> None:
    assert plan_name(checkpoint) == name


@pytest.mark.parametrize("text", ["a: b", "#x", "yes", "3.5", "null", "- a", "'", "naïve", "a # b"])
def test_names_that_yaml_would_misread_are_quoted(text: str) -> None:
    config = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }
    assert parse_plan(plan_text("a", text, config)).model.checkpoint == text


def test_check_lists_every_violation_and_exits_with_2(checkpoint: Path) -> None:
    os.truncate(checkpoint / "model.safetensors", 5000)
    Path("conch.yaml").write_text(
        "name: a\nmodel: {checkpoint: ./checkpoint}\nengine: {parallel: {tensor: 2}}\nquantization: {format: nvfp4}\n"
    )
    done = conch("check")
    assert done.exit_code == 2
    for part in ("backend.parallel  engine.parallel", "quant.nvfp4-needs-cuda", "checkpoint.truncated"):
        assert f"error {part}" in done.stdout
    assert done.stdout.endswith("conch.yaml: 3 error(s), 0 warning(s)\n")


def test_check_with_json_is_for_scripts(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    conch("init", "checkpoint")
    done = conch("check", "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["ok"] is True
    (violation,) = report["violations"]
    assert (violation["rule"], violation["severity"]) == ("model.no-chat-template", "warning")
    assert set(violation) == {"rule", "severity", "where", "message", "fix"}


def test_check_with_json_of_a_bad_plan_is_json_too(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", architectures=["Other"])
    conch("init", "checkpoint")
    done = conch("check", "--json")
    assert done.exit_code == 2
    report = json.loads(done.stdout)
    assert (report["ok"], report["violations"][0]["rule"]) == (False, "checkpoint.architecture")


def test_check_of_a_missing_plan_says_how_to_write_one() -> None:
    done = conch("check")
    assert done.exit_code == 2
    assert "conch init" in done.stderr


def test_schema_is_json_with_or_without_the_flag() -> None:
    assert json.loads(conch("schema").stdout) == json.loads(conch("schema", "--json").stdout)
