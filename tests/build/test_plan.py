"""The plan file: what loads, and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from conch_build.errors import PlanError
from conch_build.plan import load_plan, parse_plan, plan_schema

SMALLEST = "name: tiny\nmodel: {checkpoint: sample}\n"


def refusal(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_name_and_checkpoint_are_enough() -> None:
    plan = parse_plan(SMALLEST)
    assert plan.engine.backend == "openvino"
    assert plan.engine.kv_cache.size == 1 << 30
    assert plan.quantization.format == "none"


def test_a_plan_is_frozen() -> None:
    with pytest.raises(ValidationError):
        parse_plan(SMALLEST).engine.max_batch_size = 3


def test_sizes_and_durations_carry_units() -> None:
    plan = parse_plan(SMALLEST + "engine: {kv_cache: {size: 256MiB}}\nslo: {ttft_p95: 100ms}\n")
    assert plan.engine.kv_cache.size == 256 << 20
    assert plan.slo.ttft_p95 == pytest.approx(0.1)
    assert "1GiB" in refusal(SMALLEST + "engine: {kv_cache: {size: 5}}")


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    message = refusal(SMALLEST + "engine: {max_batchsize: 3}")
    assert "`engine.max_batchsize` is not a key of the plan; did you mean `max_batch_size`?" in message
    assert "known keys: backend, precision" in refusal(SMALLEST + "engine: {zzzzz: 3}")


def test_a_part_that_may_be_left_out_names_its_keys_like_any_other() -> None:
    message = refusal(SMALLEST + "serving: {disaggregated: {contxt: {}, generation: {tensr: 2}}}")
    assert "`serving.disaggregated.contxt` is not a key of the plan; did you mean `context`?" in message
    assert "`serving.disaggregated.generation.tensr` is not a key of the plan; did you mean `tensor`?" in message


def test_a_checkpoint_in_the_models_place_is_told_where_it_belongs() -> None:
    assert "`model` is a mapping: write `checkpoint: sample` under it" in refusal("name: a\nmodel: sample\n")


def test_every_mistake_is_told_at_once() -> None:
    message = refusal("nam: x\nmodel: {checkpoint: 3}\nengine: {max_batch_size: 0}")
    for part in ("`nam`", "`name` is missing", "`model.checkpoint`", "`engine.max_batch_size`"):
        assert part in message


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("quantization: {group_size: big}", "`quantization.group_size` must be 'auto' or a valid integer"),
        ("engine: {threads: 0}", "`engine.threads` must be 'auto' or greater than or equal to 1"),
        ("engine: {lora: {adapters: {int: 3}}}", "`engine.lora.adapters.int` must be a valid string"),
        ("engine: openvino", "`engine` is a mapping: write `backend: openvino` under it"),
        ("engine: {kv_cache: 2GiB}", "`engine.kv_cache` is a mapping: write `size: 2GiB` under it"),
        ("serving: {gateway: 9000}", "`serving.gateway` is a mapping: write `port: 9000` under it"),
        ("serving: 9000", "`serving` is a mapping: its keys are replicas, triton, gateway"),
        ("quantization:", "`quantization` is a mapping: its keys are format, group_size"),
        ("engine: {backend: cuda}", "`engine.backend` must be 'openvino', 'tensorrt' or 'pytorch'"),
        ("engine: {max_batch_size: '3'}", "`engine.max_batch_size` must be a valid integer (given: '3')"),
    ],
)
def test_a_mistake_is_one_sentence_naming_its_key(plan: str, sentence: str) -> None:
    message = refusal(SMALLEST + plan)
    assert sentence in message
    assert ";" not in message


@pytest.mark.parametrize(
    "text", ["", "3", "- a", "name: [", "name: a\nname: b\nmodel: {checkpoint: x}", "1: 2", "[" * 5000]
)
def test_what_is_no_mapping_of_unique_text_keys_is_refused(text: str) -> None:
    assert refusal(text)


def test_a_key_written_twice_is_refused_with_its_line() -> None:
    assert "key 'size' is written twice (line 6" in refusal(
        SMALLEST + "engine:\n  kv_cache:\n    size: 1GiB\n    size: 2GiB\n"
    )


@pytest.mark.parametrize("name", ["a b", "", "-a", "a/b", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    assert "`name`" in refusal(f"name: '{name}'\nmodel: {{checkpoint: x}}")


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            "engine: {parallel: {pipeline: 1000000000000}}",
            "`engine.parallel.pipeline` must be less than or equal",
        ),
        ("target: {gpus_per_node: 1000000000000}", "`target.gpus_per_node` must be less"),
        ("serving: {disaggregated: {context: {instances: 5000}}}", "`serving.disaggregated.context.instances` must"),
        (f"engine: {{max_batch_size: 1{'0' * 400}}}", "`engine.max_batch_size` must be less"),
        (f"engine: {{max_batch_size: 1{'0' * 5000}}}", "holds a value that cannot be read"),
        ("target: {tensorrt_llm: 2024-13-45}", "holds a value that cannot be read"),
        (f"engine: {{kv_cache: {{size: {'9' * 400}TiB}}}}", "more than any machine has"),
        (f"slo: {{ttft_p95: {'9' * 400}h}}", "more than any machine has"),
        ("target: {container: ''}", "`target.container`"),
        ("target: {container: 'a $(b)'}", "`target.container`"),
        ("engine: {lora: {adapters: {a: ''}}}", "`engine.lora.adapters.a`: it is empty"),
        ("quantization: {calibration: {data: ' '}}", "`quantization.calibration.data`: it is empty"),
        (f"engine: {{speculation: {{checkpoint: {'x' * 300}}}}}", "too long for the name of a file"),
        ('engine: {speculation: {checkpoint: "a\\nb"}}', "more than one line"),
        ('target: {gpu: "h100\\0"}', "'\\x00' is no character of text"),
        ('target: {gpu: "\\ud800"}', "'\\ud800' is no character of text"),
    ],
)
def test_what_no_machine_or_file_can_be_is_refused_before_it_is_tried(plan: str, sentence: str) -> None:
    assert sentence in refusal(SMALLEST + plan)


def test_a_home_of_nobody_is_a_path_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "conch.yaml").write_text("name: a\nmodel: {checkpoint: ~nobody-of-this-name/x}\n")
    assert load_plan(tmp_path / "conch.yaml").model.checkpoint.endswith("~nobody-of-this-name/x")


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="conch init"):
        load_plan(tmp_path / "conch.yaml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conch.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "conch.yaml")


def test_relative_paths_start_at_the_plans_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    text = "name: a\nmodel: {checkpoint: %s}\nquantization: {calibration: {data: texts.txt}}\n"
    path = tmp_path / "conch.yaml"
    for written in ("models", "./models"):
        path.write_text(text % written)
        plan = load_plan(path)
        assert plan.model.checkpoint == str(tmp_path / "models")
        assert plan.quantization.calibration.data == str(tmp_path / "texts.txt")
    path.write_text(text % "owner/model")
    assert load_plan(path).model.checkpoint == "owner/model"


def test_the_schema_knows_every_part_and_forbids_other_keys() -> None:
    schema = plan_schema()
    assert set(schema["properties"]) == {
        "name", "model", "target", "quantization", "engine", "quality", "serving", "slo", "cost"
    }  # fmt: skip
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Engine"]["properties"]["max_num_tokens"]["description"]
