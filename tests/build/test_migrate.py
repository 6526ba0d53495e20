"""`conch migrate`: an engine plan becomes one for the LLM API, and each difference is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from conch_build.commands.migrate import migrate as command
from conch_build.errors import PlanError
from conch_build.migrate import FLAGS_AS_ARGUMENTS, FLAGS_DECIDED_THERE, Change, Migration, migrate
from conch_build.plan import QUANT_FORMATS, Plan, parse_plan
from conch_build.profiles import PROFILES, profile_violations

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]

TEXT = """\
# Llama for the night shift
name: llama
model:
  checkpoint: meta-llama/Llama-3.3-70B-Instruct  # from the hub
target: {gpu: h100}
quantization:
  format: int8_sq     # smooth
engine:
  backend: tensorrt   # engines
  parallel: {tensor: 4}
  # heads of our own
  speculation:
    method: medusa
    checkpoint: ./heads
    max_draft_len: 8  # tokens
  build_args:
    gemm_plugin: auto
    max_beam_width: 4
    weight_streaming: true
serving:
  triton: {layout: ensemble, launch: orchestrator}
  gateway: {port: 8081}  # the API
"""


def engine_plan(engine: str = "", **parts: str) -> str:
    rest = "".join(f", {name}: {{{text}}}" for name, text in parts.items())
    return f"{{name: m, model: {{checkpoint: sample}}, engine: {{backend: tensorrt, {engine}}}{rest}}}"


def new_plan(text: str) -> Plan:
    return parse_plan(migrate(text).text)


def change(migration: Migration, key: str) -> Change:
    (found,) = [one for one in migration.changes if one.key == key]
    return found


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


class TestText:
    def test_every_other_line_and_its_remark_stays(self) -> None:
        assert migrate(TEXT).text == (
            """\
# Llama for the night shift
name: llama
model:
  checkpoint: meta-llama/Llama-3.3-70B-Instruct  # from the hub
target: {gpu: h100}
quantization:
  format: fp8     # smooth
engine:
  backend: pytorch   # engines
  parallel: {tensor: 4}
  # heads of our own
  speculation:
    method: none
  llm_args:
    max_beam_width: 4
serving:
  triton: {layout: ensemble}
  gateway: {port: 8081}  # the API
"""
        )

    def test_what_changes_comes_in_the_order_of_the_plan_with_its_kind(self) -> None:
        assert [(one.kind, one.key) for one in migrate(TEXT).changes] == [
            ("no counterpart", "quantization.format"),
            ("note", "quantization.kv_cache"),
            ("changed", "engine.backend"),
            ("no counterpart", "engine.speculation.method"),
            ("dropped", "engine.speculation.checkpoint"),
            ("dropped", "engine.speculation.max_draft_len"),
            ("dropped", "engine.build_args.gemm_plugin"),
            ("moved", "engine.build_args.max_beam_width"),
            ("no counterpart", "engine.build_args.weight_streaming"),
            ("note", "serving.triton.layout"),
            ("dropped", "serving.triton.launch"),
        ]

    def test_a_line_says_key_old_and_new_value_and_why(self) -> None:
        lines = str(change(migrate(TEXT), "quantization.format")).splitlines()
        assert lines[0].split() == ["no", "counterpart", "quantization.format:", "int8_sq", "->", "fp8"]
        assert "no kernels for int8_sq" in lines[1]
        moved = str(change(migrate(TEXT), "engine.build_args.max_beam_width"))
        assert "engine.build_args.max_beam_width -> engine.llm_args.max_beam_width: 4" in moved


class TestFormats:
    @pytest.mark.parametrize(
        ("gpu", "old", "new"),
        [
            ("h100", "int8_sq", "fp8"),
            ("h100", "int8", "fp8"),
            ("a100", "int8_sq", "none"),
            ("h100", "int4_awq", "int4_awq"),
            ("b200", "int4_awq", "nvfp4"),
            ("b200", "w4a8_awq", "nvfp4"),
            ("a100", "w4a8_awq", "int4_awq"),
            ("b200", "nvfp4", "nvfp4"),
            ("l40s", "fp8", "fp8"),
            ("l40s", "none", "none"),
        ],
    )
    def test_one_without_kernels_gives_way_to_another_of_its_size_on_the_gpu(
        self, gpu: str, old: str, new: str
    ) -> None:
        text = engine_plan(quantization=f"format: {old}", target=f"gpu: {gpu}")
        assert new_plan(text).quantization.format == new

    def test_an_int8_cache_becomes_fp8(self) -> None:
        migration = migrate(engine_plan(quantization="kv_cache: int8"))
        assert change(migration, "quantization.kv_cache").now == "fp8"
        assert parse_plan(migration.text).quantization.kv_cache == "fp8"

    def test_what_the_new_format_cannot_use_is_dropped(self) -> None:
        text = engine_plan(
            quantization="format: int4_awq, group_size: 64, calibration: {data: texts.txt}", target="gpu: b200"
        )
        migration = migrate(text)
        assert change(migration, "quantization.group_size").kind == "dropped"
        assert change(migration, "quantization.calibration.data").kind == "no counterpart"
        plan = parse_plan(migration.text)
        assert (plan.quantization.group_size, plan.quantization.calibration.data) == ("auto", "builtin")


class TestEngine:
    @pytest.mark.parametrize("method", ["medusa", "lookahead"])
    def test_methods_of_engines_have_no_counterpart(self, method: str) -> None:
        migration = migrate(engine_plan(f"speculation: {{method: {method}}}"))
        assert change(migration, "engine.speculation.method").kind == "no counterpart"
        assert parse_plan(migration.text).engine.speculation.method == "none"

    def test_a_draft_model_stays_and_loses_its_engine(self) -> None:
        text = engine_plan("parallel: {pipeline: 2}, speculation: {method: draft, checkpoint: small}")
        migration = migrate(text)
        assert "no BLS" in change(migration, "engine.speculation.method").why
        assert "pipeline" in change(migration, "engine.parallel.pipeline").why
        assert parse_plan(migration.text).engine.speculation == parse_plan(text).engine.speculation

    @pytest.mark.parametrize("flag", FLAGS_AS_ARGUMENTS)
    def test_flags_with_an_argument_move_there(self, flag: str) -> None:
        value = {"max_beam_width": "4"}.get(flag, "true")
        plan = new_plan(engine_plan(f"build_args: {{{flag}: {value}}}"))
        assert plan.engine.build_args == {}
        assert OLD.llm_args_problems(plan.engine.llm_args, "pytorch") == []
        assert list(plan.engine.llm_args) == [FLAGS_AS_ARGUMENTS[flag]]

    @pytest.mark.parametrize(("flag", "kind"), [("gemm_plugin", "dropped"), ("strip_plan", "no counterpart")])
    def test_other_flags_go_with_a_reason(self, flag: str, kind: str) -> None:
        migration = migrate(engine_plan(f"build_args: {{{flag}: auto}}"))
        assert change(migration, f"engine.build_args.{flag}").kind == kind
        assert parse_plan(migration.text).engine.build_args == {}

    def test_flags_are_flags_and_arguments_are_arguments(self) -> None:
        flags = {flag.name for flag in OLD.flags_of("trtllm-build")}
        assert {f"--{name}" for name in (*FLAGS_AS_ARGUMENTS, *FLAGS_DECIDED_THERE)} <= flags
        for name in FLAGS_AS_ARGUMENTS.values():
            assert any(name in OLD.llm_args_fields(part) for part in ("BaseLlmArgs", "TorchLlmArgs"))

    def test_adapters_are_read_as_they_are(self) -> None:
        migration = migrate(engine_plan("lora: {adapters: {night: /adapters/night}}"))
        assert "nothing is converted" in change(migration, "engine.lora.adapters").why


@pytest.mark.parametrize("backend", ["openvino", "pytorch"])
def test_only_engines_are_migrated(backend: str) -> None:
    with pytest.raises(PlanError, match=f"the {backend} backend") as caught:
        migrate(f"{{name: m, model: {{checkpoint: sample}}, engine: {{backend: {backend}}}}}")
    assert caught.value.where == "engine.backend"


_METHODS = st.sampled_from(["none", "draft", "medusa", "lookahead"])
_KV = st.sampled_from(["auto", "fp8", "int8", "bf16"])
_GPUS = st.sampled_from(["a100", "l40s", "h100", "b200"])
_LAUNCH = st.sampled_from(["leader", "orchestrator"])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(QUANT_FORMATS), _KV, _METHODS, _GPUS, _LAUNCH)
def test_the_new_plan_asks_for_nothing_that_a_release_without_engines_lacks(
    form: str, kv_cache: str, method: str, gpu: str, launch: str
) -> None:
    text = engine_plan(
        f"speculation: {{method: {method}, checkpoint: x}}, build_args: {{gemm_plugin: auto}}",
        quantization=f"format: {form}, kv_cache: {kv_cache}",
        target=f"gpu: {gpu}",
        serving=f"triton: {{launch: {launch}}}",
    )
    plan = new_plan(text)
    for profile in (OLD, NEW):
        assert not [lack for lack in profile_violations(plan, profile) if lack.severity == "error"]


class TestCommand:
    @pytest.fixture
    def old(self, tmp_path: Path) -> Path:
        path = tmp_path / "engine.yaml"
        path.write_text(TEXT)
        return path

    def test_without_a_file_the_new_plan_is_on_stdout_and_the_changes_beside_it(self, old: Path) -> None:
        result = run(old)
        assert result.exit_code == 0
        assert result.stdout == migrate(TEXT).text
        assert "no counterpart engine.speculation.method: medusa -> none" in result.stderr

    def test_with_a_file_it_is_written_and_the_changes_are_the_result(self, old: Path) -> None:
        new = old.with_name("new.yaml")
        result = run(old, "-o", new)
        assert new.read_text() == migrate(TEXT).text
        assert f"wrote {new}; next: conch check {new}" in result.stdout

    def test_json_has_every_change(self, old: Path) -> None:
        report: dict[str, Any] = json.loads(run(old, "--json").stdout)
        assert report["text"] == migrate(TEXT).text
        assert report["changes"] == [one.as_dict() for one in migrate(TEXT).changes]
        assert report["changes"][7]["to"] == "engine.llm_args.max_beam_width"

    def test_a_file_that_exists_is_only_overwritten_by_force(self, old: Path) -> None:
        assert run(old, "-o", old).exit_code == 2
        assert old.read_text() == TEXT
        assert run(old, "-o", old, "--force").exit_code == 0
        assert parse_plan(old.read_text()).engine.backend == "pytorch"

    def test_another_folder_is_refused_as_paths_would_lead_elsewhere(self, old: Path, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        result = run(old, "-o", tmp_path / "other" / "new.yaml")
        assert result.exit_code == 2 and "another folder" in result.stderr

    def test_remarks_are_only_lost_where_the_text_cannot_be_edited_and_that_is_told(self, old: Path) -> None:
        assert "comments are lost" not in run(old).stderr
        old.write_text(TEXT.replace("format: int8_sq", "kv_cache: &eight int8\n  format: *eight"))
        result = run(old)
        assert "comments are lost" in result.stderr
        assert parse_plan(result.stdout).quantization.format == "fp8"

    def test_a_plan_that_is_none_and_a_file_that_is_not_there_are_refused(self, old: Path, tmp_path: Path) -> None:
        assert run(tmp_path / "nothing.yaml").exit_code == 2
        old.write_text("name: [")
        assert run(old).exit_code == 2
