"""Packing: every backend and layout has its models, with upstream's tensors, whatever the paths are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build.errors import BuildError, PlanError
from conch_build.pack import configs, deciding_settings
from conch_build.pack import parameters as tables
from tests.model_repo.plans import packed, parameters, plan_for

ODD = "a,b:c \"q\" 'x' $HOME ${engine_dir} \\n {ü} 贝"
UPSTREAM = json.loads((Path(__file__).parent / "upstream.json").read_text())
TEXT = {"preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls"}
DRAFTING = {"speculation": {"method": "draft", "checkpoint": "sample", "max_draft_len": 4}}


def declared(tensors: Any) -> list[str]:
    """Tensors as upstream.json writes them."""
    types = {value.number: value.name.removeprefix("TYPE_") for value in _data_types()}
    return [
        f"{tensor.name} {types[tensor.data_type]} {json.dumps(list(tensor.dims))}"
        + (" optional" if getattr(tensor, "optional", False) else "")
        for tensor in tensors
    ]


def _data_types() -> Any:
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.DataType.DESCRIPTOR.values


@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_the_ensemble_layout_has_the_engine_and_the_text_models(backend: str, tmp_path: Path) -> None:
    found = packed(tmp_path, plan_for(backend))
    assert set(found) == TEXT | {"tensorrt_llm"}
    assert all(config.max_batch_size == 48 for config in found.values())
    for name, config in found.items():
        assert (tmp_path / name / "1").is_dir()
        assert (tmp_path / name / "1" / "model.py").is_file() == (config.backend == "python")


@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_the_tokens_layout_has_the_engine_only(backend: str, tmp_path: Path) -> None:
    assert set(packed(tmp_path, plan_for(backend, triton={"layout": "tokens"}))) == {"tensorrt_llm"}


def test_each_backend_has_an_engine_of_its_own(tmp_path: Path) -> None:
    found = {backend: packed(tmp_path / backend, plan_for(backend)) for backend in ("openvino", "tensorrt", "pytorch")}
    assert {backend: each["tensorrt_llm"].backend for backend, each in found.items()} == {
        "openvino": "python",
        "tensorrt": "tensorrtllm",
        "pytorch": "python",
    }
    assert "LlmApiModel" in (tmp_path / "pytorch" / "tensorrt_llm" / "1" / "model.py").read_text()
    assert "conch.backend.generation" in (tmp_path / "openvino" / "tensorrt_llm" / "1" / "model.py").read_text()


@pytest.mark.parametrize("model", ["tensorrt_llm", *sorted(TEXT)])
@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_the_tensors_are_upstreams_and_only_our_own_engines_have_more(backend: str, model: str, tmp_path: Path) -> None:
    config = packed(tmp_path, plan_for(backend))[model]
    holes = {"logits_datatype": "FP32", "encoder_input_features_data_type": "FP16"}
    holes["prompt_embedding_table_data_type"] = "FP16" if backend == "openvino" else "BF16"
    for ours, theirs in ((config.input, "inputs"), (config.output, "outputs")):
        upstream = set(UPSTREAM[model][theirs])
        for hole, value in holes.items():
            upstream = {tensor.replace(hole, value) for tensor in upstream}
        extra = set(declared(ours)) ^ upstream
        assert all(tensor.startswith("conch_") for tensor in extra)
        if backend == "tensorrt" and model not in ("preprocessing", "postprocessing"):
            assert not extra


def test_scalars_of_the_engine_lose_their_dimension_and_lists_may_differ_in_length(tmp_path: Path) -> None:
    inputs = {tensor.name: tensor for tensor in packed(tmp_path, plan_for("tensorrt"))["tensorrt_llm"].input}
    for name in ("input_lengths", "request_output_len", "streaming", "seed", "lora_task_id"):
        assert inputs[name].HasField("reshape") and not inputs[name].reshape.shape
    for name in ("input_ids", "draft_input_ids", "stop_words_list", "lora_weights", "guided_decoding_guide"):
        assert inputs[name].allow_ragged_batch and not inputs[name].HasField("reshape")


@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_engine_and_bls_are_decoupled_alike(backend: str, tmp_path: Path) -> None:
    found = packed(tmp_path, plan_for(backend))
    assert found["tensorrt_llm"].model_transaction_policy.decoupled
    assert found["tensorrt_llm_bls"].model_transaction_policy.decoupled


@pytest.mark.parametrize("batch", [1, 3, 28, 29, 256])
@pytest.mark.parametrize("backend", ["openvino", "tensorrt"])
def test_no_model_has_more_instances_than_there_are_requests(backend: str, batch: int, tmp_path: Path) -> None:
    found = packed(tmp_path, plan_for(backend, max_batch_size=batch))
    for config in found.values():
        assert sum(group.count for group in config.instance_group) <= batch
    if backend == "tensorrt":
        assert found["tensorrt_llm_bls"].instance_group[0].count * tables.BLS_REQUESTS >= batch


def test_a_draft_model_is_served_beside_its_target(tmp_path: Path) -> None:
    found = packed(tmp_path, plan_for("tensorrt", **DRAFTING))
    assert set(found) == TEXT | {"tensorrt_llm", "tensorrt_llm_draft"}
    target, draft, bls = (
        parameters(found[name]) for name in ("tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls")
    )
    assert draft["gpt_model_path"] == "/engines/a/draft/engine"
    assert target["gpt_model_path"] == "/engines/a/engine"
    assert target["enable_kv_cache_reuse"] == draft["enable_kv_cache_reuse"] == "true"
    fractions = [float(each["kv_cache_free_gpu_mem_fraction"]) for each in (target, draft)]
    assert sum(fractions) == pytest.approx(0.9)
    assert bls["tensorrt_llm_model_name"] == "tensorrt_llm"
    assert bls["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"


def test_the_ensemble_lets_preprocessing_end_answers_of_the_cpp_backend(tmp_path: Path) -> None:
    first, engine, _ = packed(tmp_path, plan_for("tensorrt"))["ensemble"].ensemble_scheduling.step
    assert first.input_map["END_ID"] == "end_id"
    assert engine.input_map["end_id"] == first.output_map["OUT_END_ID"] == "_END_ID"


@pytest.mark.parametrize(
    ("backend", "layout", "engine", "message"),
    [
        ("openvino", "llmapi", {}, "`llmapi` does not serve the backend `openvino`"),
        ("tensorrt", "llmapi", {}, "`llmapi` does not serve the backend `tensorrt`"),
        ("tensorrt", "tokens", DRAFTING, "a draft model is asked by `tensorrt_llm_bls`"),
    ],
)
def test_a_layout_that_the_backend_lacks_is_refused(
    backend: str, layout: str, engine: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=message):
        packed(tmp_path, plan_for(backend, triton={"layout": layout}, **engine))


def test_what_cannot_be_launched_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="in leader mode one server has one engine"):
        packed(tmp_path, plan_for("tensorrt", triton={"instances": 2}, parallel={"tensor": 2}))


@pytest.mark.parametrize("backend", ["openvino", "tensorrt", "pytorch"])
def test_odd_paths_arrive_unchanged_and_no_placeholder_is_left(backend: str, tmp_path: Path) -> None:
    engine, out = tmp_path / ODD, tmp_path / "out"
    found = packed(out, plan_for(backend), engine)
    path = engine / "engine" if backend == "tensorrt" else engine
    assert parameters(found["tensorrt_llm"])["gpt_model_path"] == str(path)
    assert parameters(found["preprocessing"])["tokenizer_dir"] == str(engine / "tokenizer")
    for file in out.rglob("*"):
        assert file.is_dir() or "${" not in file.read_text(encoding="utf-8")


def test_a_missing_value_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {name: value for name, value in tables.PLACEHOLDERS.items() if name != "logits_datatype"}
    monkeypatch.setattr(tables, "PLACEHOLDERS", lacking)
    with pytest.raises(BuildError, match="no value for the placeholder `logits_datatype`"):
        packed(tmp_path, plan_for())


def test_a_tensor_and_a_parameter_take_a_line_each(tmp_path: Path) -> None:
    config = packed(tmp_path, plan_for("tensorrt"))["tensorrt_llm"]
    text = (tmp_path / "tensorrt_llm" / "config.pbtxt").read_text()
    assert 'parameters { key: "enable_chunked_context" value { string_value: "true" } }\n' in text
    assert len(text.splitlines()) < len(config.input) + len(config.output) + len(config.parameters) + 25
    assert configs.parse_config(configs.render(config), "again") == config


def test_what_the_repository_depends_on_decides_it() -> None:
    plain = deciding_settings(plan_for("tensorrt"))
    for other in (
        plan_for("tensorrt", triton={"instances": 2}),
        plan_for("tensorrt", triton={"launch": "orchestrator"}),
        plan_for("tensorrt", triton={"layout": "tokens"}),
        plan_for("tensorrt", kv_cache={"free_memory_fraction": 0.5}),
    ):
        assert deciding_settings(other) != plain
