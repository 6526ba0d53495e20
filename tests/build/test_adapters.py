"""Adapters that do not fit, each refused with what is wrong with it and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conch_build.adapter_registry import AdapterRegistry, register
from conch_build.adapters import adaptable_layers, examine, open_adapter
from conch_build.errors import CheckpointError, StoreError
from conch_build.plan import Lora, parse_plan
from conch_build.preflight import Violation, check
from tests.build.conftest import EditJson
from tests.build.exports import info_of
from tests.build.tiny import write_tiny
from tests.build.tiny_adapter import write_adapter

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def good(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of rank 8 for q_proj and v_proj. Shared: do not write to it."""
    return write_adapter(tiny_llama, tmp_path_factory.mktemp("adapter") / "good")


@pytest.fixture
def adapter(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(good, tmp_path / "adapter")


EditWeights = Callable[[Callable[[dict[str, Any]], object]], None]


@pytest.fixture
def edit_weights(adapter: Path) -> EditWeights:
    def edit(change: Callable[[dict[str, Any]], object]) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(adapter / WEIGHTS)
        change(tensors)
        save_file(tensors, adapter / WEIGHTS)

    return edit


def problem(adapter: Path, base: Path, max_rank: int = 16) -> CheckpointError:
    """The only thing that is wrong with an adapter."""
    found, problems = examine(adapter, adaptable_layers(info_of(base)), max_rank)
    assert found is None
    (error,) = problems
    assert error.what and error.fix
    return error


def test_one_that_fits_is_opened_with_its_rank_and_scale(good: Path, tiny_llama: Path) -> None:
    adapter = open_adapter(good, adaptable_layers(info_of(tiny_llama)), 8)
    assert adapter.rank == 8
    assert {pair.scale for pair in adapter.pairs.values()} == {2.0}
    assert {name.rpartition(".")[2] for name in adapter.pairs} == {"q_proj", "v_proj"}


# --- files


def test_a_directory_that_is_not_there(tiny_llama: Path, tmp_path: Path) -> None:
    error = problem(tmp_path / "nowhere", tiny_llama)
    assert error.rule == "lora.files" and "no such directory" in error.what


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_missing(adapter: Path, tiny_llama: Path, name: str) -> None:
    (adapter / name).unlink()
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.files" and name in error.what


def test_pickle_weights(adapter: Path, tiny_llama: Path) -> None:
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.pickle" and "run code" in error.what


def test_weights_that_are_cut_short(adapter: Path, tiny_llama: Path) -> None:
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:-8])
    assert problem(adapter, tiny_llama).rule == "checkpoint.truncated"


# --- what it asks for


@pytest.mark.parametrize(
    ("settings", "rule", "words"),
    [
        ({"peft_type": "IA3"}, "lora.type", "IA3"),
        ({"use_dora": True}, "lora.unsupported", "use_dora"),
        ({"bias": "all"}, "lora.unsupported", "bias"),
        ({"bias": "lora_only"}, "lora.unsupported", "bias"),
        ({"lora_bias": True}, "lora.unsupported", "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "lora.unsupported", "modules_to_save"),
        ({"fan_in_fan_out": True}, "lora.unsupported", "fan_in_fan_out"),
        ({"layer_replication": [[0, 2], [0, 2]]}, "lora.unsupported", "layer_replication"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "lora.unsupported", "target_parameters"),
        ({"trainable_token_indices": [1]}, "lora.unsupported", "trainable_token_indices"),
        ({"alora_invocation_tokens": [5]}, "lora.unsupported", "alora_invocation_tokens"),
        ({"use_something_new": True}, "lora.unsupported", "use_something_new"),
        ({"init_lora_weights": "pissa_niter_4"}, "lora.unsupported", "changes the base model's own weights"),
        ({"r": 0}, "lora.config", "`r` must be a whole number above 0, not 0"),
        ({"lora_alpha": "16"}, "lora.config", "`lora_alpha` must be a number"),
        ({"lora_alpha": 10**400}, "lora.config", "`lora_alpha` must be a number"),
        ({"lora_alpha": float("nan")}, "lora.config", "`lora_alpha` must be a number"),
        ({"rank_pattern": {"q_proj": -1}}, "lora.config", "`rank_pattern.q_proj`"),
        ({"rank_pattern": 3}, "lora.config", "`rank_pattern` must be a mapping"),
        ({"target_modules": "(q_proj"}, "lora.config", "no regular expression"),
        ({"target_modules": 3}, "lora.config", "`target_modules` must be a text or a list of texts"),
        ({"layers_to_transform": "all"}, "lora.config", "`layers_to_transform`"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_honoured(
    adapter: Path, tiny_llama: Path, edit_json: EditJson, settings: dict[str, Any], rule: str, words: str
) -> None:
    edit_json(adapter / CONFIG, **settings)
    error = problem(adapter, tiny_llama)
    assert error.rule == rule and words in error.what


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "LoRA on embeddings"),
        (f"{Q}.lora_magnitude_vector", "DoRA"),
        ("base_model.model.lm_head.base_layer.weight", "weights of the base model"),
        ("base_model.model.model.embed_tokens.weight", "embeddings of its own"),
        (f"{Q}.lora_B.bias", "biases"),
        ("base_model.model.model.norm.weight", "no LoRA of a linear layer"),
    ],
)
def test_a_tensor_that_cannot_be_added(
    adapter: Path, tiny_llama: Path, edit_weights: EditWeights, name: str, words: str
) -> None:
    edit_weights(lambda tensors: tensors.update({name: torch.zeros(8, 64)}))
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.unsupported" and words in error.what and name in error.what


def test_half_of_a_pair(adapter: Path, tiny_llama: Path, edit_weights: EditWeights) -> None:
    edit_weights(lambda tensors: tensors.pop(f"{Q}.lora_B.weight"))
    assert "q_proj.lora_A" in problem(adapter, tiny_llama).what


# --- whether it fits


def test_a_rank_above_the_engine_s(adapter: Path, tiny_llama: Path) -> None:
    error = problem(adapter, tiny_llama, max_rank=4)
    assert error.rule == "lora.rank" and error.what == "has rank 8, above the engine's 4"
    assert error.fix == "Set `engine.lora.max_rank: 8`."


def test_a_rank_that_the_weights_do_not_have(adapter: Path, tiny_llama: Path, edit_json: EditJson) -> None:
    edit_json(adapter / CONFIG, r=4)
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.rank" and "its config says 4" in error.what


def test_another_element_type(adapter: Path, tiny_llama: Path, edit_weights: EditWeights) -> None:
    edit_weights(lambda tensors: tensors.update({k: v.to(torch.float8_e4m3fn) for k, v in tensors.items()}))
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.dtype" and "F8_E4M3" in error.what


def test_layers_that_the_model_has_not(adapter: Path, tiny_llama: Path, edit_weights: EditWeights) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for side in "AB":
            tensors[f"{Q.replace('q_proj', 'wq')}.lora_{side}.weight"] = tensors[f"{Q}.lora_{side}.weight"].clone()

    edit_weights(rename)
    error = problem(adapter, tiny_llama)
    assert error.rule == "lora.target-modules" and "layers.0.self_attn.wq" in error.what
    assert error.fix is not None and "q_proj" in error.fix


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"hidden_size": 32}, "this model's is 64 x 64"),
        ({"num_key_value_heads": 4}, "this model's is 32 x 64"),
        ({"num_hidden_layers": 1}, "has no weights for it"),
    ],
    ids=str,
)
def test_another_base_model(tiny_llama: Path, tmp_path: Path, other: dict[str, Any], words: str) -> None:
    foreign = write_adapter(write_tiny(tmp_path / "other", **other), tmp_path / "adapter")
    error = problem(foreign, tiny_llama)
    assert error.rule == "lora.base-model" and words in error.what


def test_the_vocabulary_of_another_base_model(tiny_llama: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other", vocab_size=352)
    foreign = write_adapter(other, tmp_path / "adapter", target_modules=["lm_head"])
    assert "`lm_head` of 352 x 64; this model's is 320 x 64" in problem(foreign, tiny_llama).what


def test_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    tied = write_tiny(tmp_path / "tied", tie_word_embeddings=True)
    adapter = write_adapter(tied, tmp_path / "adapter", target_modules=["lm_head"])
    assert "`lm_head`" in problem(adapter, tied).what


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_are_no_numbers_are_found_when_they_are_read(
    adapter: Path, tiny_llama: Path, edit_weights: EditWeights, value: float
) -> None:
    """They would reach everyone in the batch: nothing times infinity is no number."""
    edit_weights(lambda tensors: tensors[f"{Q}.lora_A.weight"][0, 0].fill_(value))
    opened = open_adapter(adapter, adaptable_layers(info_of(tiny_llama)), 16)
    with pytest.raises(CheckpointError, match="not finite") as caught:
        list(opened.weights())
    assert caught.value.rule == "lora.not-finite"


def test_weights_that_change_while_they_are_read(adapter: Path, tiny_llama: Path) -> None:
    opened = open_adapter(adapter, adaptable_layers(info_of(tiny_llama)), 16)
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="changed while it was read"):
        list(opened.weights())


# --- in a plan


def violations(base: Path, adapters: dict[str, Path]) -> list[Violation]:
    plan = {"name": "tiny", "model": {"checkpoint": str(base)}, "engine": {"max_seq_len": 512}}
    plan["engine"]["lora"] = {"adapters": {name: str(path) for name, path in adapters.items()}}  # type: ignore[index]
    return check(parse_plan(json.dumps(plan)))


def test_a_plan_names_each_adapter_that_does_not_fit(good: Path, tiny_llama: Path, adapter: Path) -> None:
    assert violations(tiny_llama, {"good": good}) == []
    (adapter / WEIGHTS).unlink()
    (found,) = violations(tiny_llama, {"good": good, "bad": adapter})
    assert (found.rule, found.where, found.severity) == ("lora.files", "engine.lora.adapters.bad", "error")
    assert str(adapter) in found.message


def test_an_adapter_cannot_have_the_model_s_name(good: Path, tiny_llama: Path) -> None:
    (found,) = violations(tiny_llama, {"tiny": good})
    assert found.rule == "lora.name" and "the model's own name" in found.message


@pytest.mark.parametrize("name", ["a b", "a/b", "", "-a", "ä", "a" * 65])
def test_an_adapter_s_name_can_stand_in_a_url(good: Path, tiny_llama: Path, name: str) -> None:
    (found,) = violations(tiny_llama, {name: good})
    assert found.rule == "lora.name" and found.where == f"engine.lora.adapters.{name}"


def test_a_machine_must_hold_the_weights_twice(good: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch_build.preflight.lora.memory_bytes", lambda: 1 << 30)
    (found,) = violations(tiny_llama, {"good": good})
    assert found.rule == "lora.memory" and "a network of its own" in found.message


def test_paths_are_taken_from_the_plan_s_folder(tmp_path: Path) -> None:
    text = "{name: a, model: {checkpoint: sample}, engine: {lora: {adapters: {b: ./b, c: /c}}}}"
    adapters = parse_plan(text, folder=tmp_path).engine.lora.adapters
    assert adapters == {"b": str(tmp_path / "b"), "c": "/c"}


# --- the registry


def test_the_registry_numbers_adapters_from_one_and_gives_slots_to_their_layers(
    good: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    o_proj = write_adapter(tiny_llama, tmp_path / "o", target_modules=["o_proj"], layers_to_transform=[1])
    lora = Lora(adapters={"qv": str(good), "o": str(o_proj)}, max_loaded=4)
    registry = register(lora, info_of(tiny_llama))
    assert registry is not None
    assert [(adapter.name, adapter.id) for adapter in registry.adapters] == [("qv", 1), ("o", 2)]
    assert "model.layers.1.self_attn.o_proj" in registry.layers
    assert "model.layers.0.self_attn.o_proj" not in registry.layers
    assert registry.slots == 2
    registry.save(tmp_path)
    assert AdapterRegistry.load(tmp_path) == registry


def test_without_adapters_there_is_no_registry(tiny_llama: Path, tmp_path: Path) -> None:
    assert register(Lora(), info_of(tiny_llama)) is None
    assert AdapterRegistry.load(tmp_path) is None


def test_a_damaged_registry_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapters.json").write_text("{}")
    with pytest.raises(StoreError, match=r"adapters\.json"):
        AdapterRegistry.load(tmp_path)
