"""Packing: every template fills, parses and connects, whatever the paths are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conch_build.errors import BuildError
from conch_build.pack import check_repository, pack, read_config, template_values
from conch_build.plan import Plan, parse_plan

ODD = "a,b:c \"q\" 'x' $HOME ${engine_dir} \\n ü 贝"
INT32, FP32, STRING, BOOL, UINT64 = 8, 11, 13, 1, 5


def plan_with(layout: str = "auto") -> Plan:
    return parse_plan(
        f"{{name: m, model: {{checkpoint: sample}}, engine: {{max_batch_size: 48}},"
        f" serving: {{triton: {{layout: {layout}}}}}}}"
    )


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return tmp_path / "engine"


def packed(engine: Path, out: Path, layout: str = "auto") -> dict[str, Any]:
    pack(engine, out, plan_with(layout))
    return {path.parent.name: read_config(path) for path in out.glob("*/config.pbtxt")}


def tensors(entries: Any) -> dict[str, tuple[int, list[int], bool]]:
    return {entry.name: (entry.data_type, list(entry.dims), getattr(entry, "optional", False)) for entry in entries}


def test_the_ensemble_layout_has_four_models(engine: Path, tmp_path: Path) -> None:
    configs = packed(engine, tmp_path / "out")
    assert set(configs) == {"tensorrt_llm", "preprocessing", "postprocessing", "ensemble"}
    assert all(config.max_batch_size == 48 for config in configs.values())
    for name in set(configs) - {"ensemble"}:
        assert (tmp_path / "out" / name / "1" / "model.py").is_file()
    assert (tmp_path / "out" / "ensemble" / "1").is_dir()


def test_the_tokens_layout_has_the_engine_only(engine: Path, tmp_path: Path) -> None:
    assert set(packed(engine, tmp_path / "out", "tokens")) == {"tensorrt_llm"}


def test_a_layout_that_the_backend_lacks_is_refused(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="`llmapi` does not serve the backend `openvino`"):
        pack(engine, tmp_path / "out", plan_with("llmapi"))


def test_odd_paths_arrive_unchanged(tmp_path: Path) -> None:
    engine = tmp_path / ODD
    configs = packed(engine, tmp_path / "out")
    assert configs["tensorrt_llm"].parameters["gpt_model_path"].string_value == str(engine)
    assert configs["preprocessing"].parameters["tokenizer_dir"].string_value == str(engine / "tokenizer")


def test_no_placeholder_is_left(tmp_path: Path) -> None:
    packed(tmp_path / ODD, tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or "${" not in path.read_text(encoding="utf-8")


def test_a_missing_value_is_named(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = template_values(engine, plan_with())
    del values["engine_dir"]
    monkeypatch.setattr("conch_build.pack.template_values", lambda *_: values)
    with pytest.raises(BuildError, match="no value for the placeholder `engine_dir`"):
        pack(engine, tmp_path / "out", plan_with())


def test_the_engine_takes_upstreams_tensors_and_our_own(engine: Path, tmp_path: Path) -> None:
    config = packed(engine, tmp_path / "out")["tensorrt_llm"]
    inputs, outputs = tensors(config.input), tensors(config.output)
    assert config.model_transaction_policy.decoupled
    assert {name for name, (_, _, optional) in inputs.items() if not optional} == {
        "input_lengths",
        "request_output_len",
    }
    assert inputs["input_ids"] == (INT32, [-1], True)
    assert inputs["stop_words_list"] == (INT32, [2, -1], True)
    assert inputs["seed"] == (UINT64, [1], True)
    assert inputs["runtime_top_p"] == (FP32, [1], True)
    assert inputs["stop"] == inputs["streaming"] == (BOOL, [1], True)
    assert inputs["guided_decoding_guide"] == (STRING, [1], True)
    assert outputs["output_ids"][:2] == (INT32, [-1, -1])
    assert outputs["sequence_length"][:2] == (INT32, [-1])
    assert outputs["output_log_probs"][:2] == (FP32, [-1, -1])
    assert len([name for name in inputs if not name.startswith("conch_")]) == 62
    assert {name for name in inputs if name.startswith("conch_")} == {
        "conch_min_p",
        "conch_top_log_probs",
        "conch_end_ids",
        "conch_timeout_ms",
        "conch_logit_bias_ids",
        "conch_logit_bias_values",
        "conch_return_prompt_log_probs",
        "conch_priority",
        "conch_adapter_command",
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'value: "_INPUT_ID" }\n      input_map',
            'value: "nobody" }\n      input_map',
            "which nothing makes",
        ),
        ('key: "input_lengths"', 'key: "no_such"', "has no input `no_such`"),
        ('key: "OUTPUT" value: "text_output"', 'key: "OUTPUT" value: "text"', "`text_output` is not made"),
        ('name: "stream" data_type: TYPE_BOOL', 'name: "stream" data_type: TYPE_INT32', "another type"),
        ('model_name: "postprocessing"', 'model_name: "gone"', "there is no model `gone`"),
        ('      input_map { key: "QUERY" value: "text_input" }\n', "", "needs the input `QUERY`"),
    ],
)
def test_a_broken_ensemble_is_found(engine: Path, tmp_path: Path, old: str, new: str, problem: str) -> None:
    out = tmp_path / "out"
    pack(engine, out, plan_with())
    path = out / "ensemble" / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BuildError, match=problem):
        check_repository(out)


def test_a_config_that_does_not_parse_is_named_with_its_line(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(engine, out, plan_with())
    (out / "ensemble" / "config.pbtxt").write_text("name: 'x'\nno_such_field: 1\n")
    with pytest.raises(BuildError, match=r"ensemble/config.pbtxt: does not parse: 2:"):
        check_repository(out)
