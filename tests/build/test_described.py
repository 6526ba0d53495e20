"""Checkpoints of which only config.json is there: what is known of them, and who may use them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from conch_build.adapters import adaptable_layers
from conch_build.checkpoint import resolve
from conch_build.errors import CheckpointError
from conch_build.model_info import ModelInfo, counted_parameters
from conch_build.plan import Model
from tests.build.configs import Name, described, write_config
from tests.build.tiny import Family, write_tiny

PUBLISHED: dict[Name, int] = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_counted_from_the_config_as_they_were_published(name: Name) -> None:
    info = described(name)
    assert info.parameters == PUBLISHED[name]
    assert info.weight_bytes == 2 * PUBLISHED[name]
    assert not info.weights_present


OTHERS: list[tuple[str, int, dict[str, Any]]] = [
    (
        "DeepSeek-V3",
        671_026_419_200,
        {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 128,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "vocab_size": 129280,
        },
    ),
    (
        "gpt-oss-20b",
        20_914_757_184,
        {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "attention_bias": True,
            "head_dim": 64,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_hidden_layers": 24,
            "num_local_experts": 32,
            "vocab_size": 201088,
        },
    ),
    (
        "Qwen1.5-MoE",
        14_315_784_192,
        {
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "vocab_size": 151936,
        },
    ),
    (
        "Qwen3-30B-A3B",
        30_532_122_624,
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": 128,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "vocab_size": 151936,
        },
    ),
]


@pytest.mark.parametrize(("name", "parameters", "keys"), OTHERS, ids=[name for name, _, _ in OTHERS])
def test_mixtures_of_experts_and_latent_attention_are_counted_too(
    tmp_path: Path, name: str, parameters: int, keys: dict[str, Any]
) -> None:
    assert of(write_config(tmp_path, **keys)).parameters == parameters


@pytest.mark.parametrize("family", get_args(Family))
def test_what_is_counted_is_what_the_weights_hold(tmp_path: Path, family: Family) -> None:
    folder = write_tiny(tmp_path / "whole", family)
    whole = of(folder)
    shutil.copytree(folder, tmp_path / "described", ignore=shutil.ignore_patterns("*.safetensors"))
    alone = of(tmp_path / "described")
    assert counted_parameters(alone) == alone.parameters == whole.parameters
    assert alone.embedding_parameters == whole.embedding_parameters
    assert alone.end_ids == whole.end_ids and alone.chat_template


def test_biases_that_the_config_asks_for_are_counted(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "whole", attention_bias=True, mlp_bias=True)
    shutil.copytree(folder, tmp_path / "described", ignore=shutil.ignore_patterns("*.safetensors"))
    assert of(tmp_path / "described").parameters == of(folder).parameters


def test_layers_without_experts_are_counted_as_such(tmp_path: Path) -> None:
    keys = {**OTHERS[3][2], "intermediate_size": 6144}
    all_sparse = of(write_config(tmp_path / "a", **keys))
    one_dense = of(write_config(tmp_path / "b", **keys, mlp_only_layers=[0]))
    assert all_sparse.parameters - one_dense.parameters == (128 * 3 * 2048 * 768 + 128 * 2048) - 3 * 2048 * 6144


def test_adapters_find_the_layers_of_a_model_whose_layers_differ(tmp_path: Path) -> None:
    layers = adaptable_layers(of(write_config(tmp_path, **OTHERS[0][2])))
    assert layers["model.layers.0.mlp.up_proj"] == (18432, 7168)
    assert layers["model.layers.3.mlp.shared_experts.up_proj"] == (2048, 7168)
    assert "model.layers.3.mlp.up_proj" not in layers


def test_a_config_alone_is_not_enough_to_build_nor_for_the_cpu(tmp_path: Path) -> None:
    model = Model(checkpoint=str(write_config(tmp_path)))
    for needs in ({"backend": "openvino", "needs_weights": False}, {"backend": "tensorrt"}, {"backend": "pytorch"}):
        with pytest.raises(CheckpointError) as caught:
            resolve(model, **needs)  # type: ignore[arg-type]
        assert "holds no weights" in caught.value.message


def test_weights_that_are_there_are_looked_at(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError) as caught:
        of(folder)
    assert "git-lfs pointer" in caught.value.message


def test_an_architecture_without_known_shapes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        of(write_config(tmp_path, architectures=["MambaForCausalLM"]))
    assert (caught.value.rule, caught.value.exit_code) == ("checkpoint.architecture", 2)
    assert "MambaForCausalLM" in caught.value.message


def of(folder: Path) -> ModelInfo:
    return resolve(Model(checkpoint=str(folder)), backend="pytorch", needs_weights=False).info
