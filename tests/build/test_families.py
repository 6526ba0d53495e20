"""Families that are computed otherwise than Llama, held to transformers through the real runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import MODEL_FILE
from conch_build.errors import CheckpointError
from conch_build.families import linear_layers
from conch_build.manifest import EngineManifest
from conch_build.quantize import quantize
from tests.build.compiled import blocks, compile_checkpoint, decode, prefill
from tests.build.conftest import EditJson
from tests.build.exports import dequantized, info_of, read, settings
from tests.build.reference import (
    EXACT_BOUND,
    PROMPT,
    hold_to_transformers,
    reference,
    reference_logits,
)
from tests.build.refusals import refusal
from tests.build.tiny import Family, write_tiny

torch = pytest.importorskip("torch")
ov = pytest.importorskip("openvino")

CAPPED: dict[str, Any] = {"attn_logit_softcapping": 0.5, "sliding_window": 20}


def longrope(trained: int, half: int) -> dict[str, Any]:
    short, long = ([start + step * index for index in range(half)] for start, step in ((1.0, 0.1), (2.0, 0.3)))
    scaling = {"type": "longrope", "short_factor": short, "long_factor": long}
    return {"original_max_position_embeddings": trained, "rope_scaling": scaling}


def runner_of(source: Path, out: Path, **how: Any) -> OpenVINORunner:
    return OpenVINORunner(out, compile_checkpoint(source, out, **how))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("phi3", {}),
        ("phi3", {"sliding_window": 20, "tie_word_embeddings": True, "head_dim": 32}),
        ("phi3", {"partial_rotary_factor": 0.5, "num_key_value_heads": 4}),
        ("phi3", longrope(32, 8)),
        ("phi3", {"partial_rotary_factor": 0.75, **longrope(256, 6)}),
        ("gemma2", {"query_pre_attn_scalar": 48, "final_logit_softcapping": 3.0, **CAPPED}),
        ("gemma2", {"attn_logit_softcapping": None, "tie_word_embeddings": True, "head_dim": 32}),
        ("gemma2", {"attn_logit_softcapping": 1.0, "num_key_value_heads": 4, "head_dim": 32}),
        pytest.param(
            "gemma3_text",
            {"sliding_window": 20, "num_hidden_layers": 7, "head_dim": 32},
            marks=pytest.mark.slow,
        ),
        (
            "gemma3_text",
            {
                "tie_word_embeddings": True,
                "sliding_window": 20,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
        ),
        ("gemma3_text", {"final_logit_softcapping": 3.0, "sliding_window_pattern": 2, "sliding_window": 20}),
        ("mixtral", {}),
        ("mixtral", {"sliding_window": 20, "num_experts_per_tok": 3, "head_dim": 32}),
        ("qwen3_moe", {"norm_topk_prob": True}),
        ("qwen3_moe", {"norm_topk_prob": False, "tie_word_embeddings": True, "head_dim": 32}),
    ],
    ids=str,
)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, family: Family, config: dict[str, Any]
) -> None:
    source = write_tiny(tmp_path / "source", family, **config)
    hold_to_transformers(source, runner_of(source, tmp_path / "engine"))


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path, edit_json: EditJson) -> None:
    silent = dict.fromkeys(
        (
            "query_pre_attn_scalar",
            "final_logit_softcapping",
            "attn_logit_softcapping",
            "layer_types",
            "hidden_activation",
        )
    )
    source = write_tiny(tmp_path / "source", "gemma2", sliding_window=20, tie_word_embeddings=True)
    edit_json(source / "config.json", tie_word_embeddings=..., **dict.fromkeys(silent, ...))
    runner = runner_of(source, tmp_path / "engine")
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - reference_logits(reference(source), PROMPT)).max() < 2e-5


def test_rope_parameters_of_later_transformers_are_understood(tmp_path: Path, edit_json: EditJson) -> None:
    linear = {"rope_type": "linear", "factor": 4.0}
    older: dict[str, Any] = {"rope_theta": 500.0, "rope_local_base_freq": 50.0, "rope_scaling": linear}
    source = write_tiny(tmp_path / "source", "gemma3_text", **older)
    expected = reference_logits(reference(source), PROMPT)
    later = {
        "full_attention": {"rope_theta": 500.0, **linear},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    edit_json(source / "config.json", **dict.fromkeys(older, ...), rope_parameters=later)
    runner = runner_of(source, tmp_path / "engine")
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - expected).max() < EXACT_BOUND


def test_parts_of_a_fused_layer_are_matmuls_with_names_of_their_own(tmp_path: Path) -> None:
    compile_checkpoint(write_tiny(tmp_path / "source", "phi3", num_hidden_layers=1), tmp_path / "engine")
    assert set(matmuls(tmp_path / "engine")) == {
        *(f"model.layers.0.self_attn.qkv_proj.{part}" for part in "qkv"),
        *(f"model.layers.0.mlp.gate_up_proj.{part}" for part in ("gate", "up")),
        *("model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj", "lm_head"),
    }


def matmuls(engine: Path) -> list[str]:
    graph = ov.Core().read_model(engine / MODEL_FILE)
    return [node.get_friendly_name() for node in graph.get_ops() if node.get_type_name() == "MatMul"]


# --- capped attention: where it is computed otherwise than by OpenVINO


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("capped") / "source", "gemma2", **CAPPED)


def test_the_cap_on_scores_matters_in_these_tests(capped: Path, edit_json: EditJson, tmp_path: Path) -> None:
    expected = reference_logits(reference(capped), PROMPT)
    model = reference(capped)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert abs(reference_logits(model, PROMPT) - expected).max() > 100 * EXACT_BOUND


def test_a_capped_prompt_is_the_same_bits_whole_and_in_pieces(capped: Path, tmp_path: Path) -> None:
    runner, table = runner_of(capped, tmp_path / "engine"), [4, 2, 7]
    whole = prefill(runner, PROMPT, [0, 1, 3])
    for end in (32, 64):
        prefill(runner, PROMPT[end - 32 : end], table, past=end - 32)
    assert np.array_equal(prefill(runner, PROMPT[64:], table, past=64), whole)


def test_capped_tokens_computed_as_sequences_of_one_step_are_those_of_steps_of_their_own(
    capped: Path, tmp_path: Path
) -> None:
    runner, table = runner_of(capped, tmp_path / "engine"), [4, 2, 7]
    prefill(runner, PROMPT[:60], table)
    expected = decode(runner, PROMPT[60:], table, past=60)
    prefill(runner, PROMPT[:60], [0, 1, 3])
    slots = [Slot([token], 60 + index, [0, 1, 3], 1) for index, token in enumerate(PROMPT[60:])]
    rows = runner.step([Slot(PROMPT[:33], 0, [5, 6], 1), *slots])
    assert rows is not None
    assert np.array_equal(rows.logits[1:], expected)


@pytest.mark.parametrize(("cache", "bound"), [("bf16", 0.02), ("u8", 0.02)])
def test_capped_attention_keeps_its_cache_in_the_type_of_the_plan(
    capped: Path, tmp_path: Path, cache: str, bound: float
) -> None:
    runner = runner_of(capped, tmp_path / "engine", cache=cache)
    expected = reference_logits(reference(capped), PROMPT)
    error = abs(decode(runner, PROMPT, blocks(runner, 70)) - expected)
    assert 1e-5 < error.max() < bound * abs(expected).max()
    manifest = EngineManifest.load(tmp_path / "engine")
    assert sum(cache.nbytes for cache in runner.read_blocks([0])) == manifest.kv_block_bytes


# --- experts


def test_only_the_chosen_experts_are_computed(tmp_path: Path) -> None:
    runner = runner_of(write_tiny(tmp_path / "source", "mixtral", dtype="bfloat16"), tmp_path / "engine")
    network = runner._request.get_compiled_model().get_runtime_model()
    kinds = [node.get_rt_info()["layerType"].value for node in network.get_ops()]
    assert kinds.count("GatherMatmul") == 2 * 3


def test_a_token_does_not_depend_on_whose_company_its_experts_keep(tmp_path: Path) -> None:
    runner = runner_of(write_tiny(tmp_path / "source", "mixtral"), tmp_path / "engine")
    table = blocks(runner, 70)
    alone = decode(runner, PROMPT, table)[-1].copy()
    rows = runner.step(
        [Slot(PROMPT[-1:], 69, table, 1), *(Slot([token], 0, [5 + token % 9], 1) for token in PROMPT[:9])]
    )
    assert rows is not None and np.array_equal(rows.logits[0], alone)


# --- quantized


@pytest.mark.parametrize(
    ("family", "format"),
    [
        ("phi3", "int8"),
        ("phi3", "int4_awq"),
        ("gemma2", "int8"),
        ("gemma3_text", "int4_awq"),
        ("mixtral", "int8"),
        ("qwen3_moe", "int8"),
    ],
)
def test_a_quantized_engine_computes_what_its_weights_stand_for(tmp_path: Path, family: Family, format: str) -> None:
    source = write_tiny(tmp_path / "source", family, dtype="bfloat16", seed=1)
    exported = tmp_path / "exported"
    exported.mkdir()
    quantize(source, exported, settings(format), info_of(source), log=tmp_path / "log")
    runner = runner_of(source, tmp_path / "engine", exported=exported, format=format)
    expected = reference_logits(stands_for(source, exported), PROMPT)
    error = abs(decode(runner, PROMPT, blocks(runner, 70)) - expected)
    # Kernels round activations to 8 bits, and a rounded one may choose another expert: not on most tokens.
    assert np.median(error.max(axis=1)) < 0.04 * abs(expected).max()


def stands_for(source: Path, exported: Path) -> Any:
    """transformers with the weights, scalings of inputs and 8-bit head that were exported."""
    from safetensors.torch import load_file

    tensors = read(exported)
    head = exported / "extra" / "lm_head.safetensors"
    tensors.update(load_file(head) if head.exists() else {})
    layers = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    weights = {name: tensor.float() for name, tensor in tensors.items() if not name.endswith("_scale")}
    weights.update({f"{layer}.weight": dequantized(tensors, layer) for layer in layers})
    model = reference(source, weights)
    for layer in layers:
        scale = tensors.get(f"{layer}.pre_quant_scale")
        if scale is not None:
            model.get_submodule(layer).register_forward_pre_hook(lambda _, x, scale=scale: (x[0] * scale.float(),))
    return model


def test_experts_in_other_formats_are_refused_by_their_layer(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", "mixtral")
    exported = tmp_path / "exported"
    exported.mkdir()
    quantize(source, exported, settings("fp8"), info_of(source), log=tmp_path / "log")
    with pytest.raises(CheckpointError, match="experts quantized other than to 8 bits") as refused:
        compile_checkpoint(source, tmp_path / "engine", exported=exported, format="fp8")
    assert refused.value.where == "model.layers.0.block_sparse_moe.experts.w1"


# --- what is accepted and what is refused


@pytest.mark.parametrize("family", ["phi3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe"])
def test_a_checkpoint_of_the_family_is_accepted_and_a_missing_tensor_is_named(tmp_path: Path, family: Family) -> None:
    from safetensors.torch import load_file, save_file

    source = write_tiny(tmp_path / "source", family)
    info = info_of(source)
    tensors = load_file(source / "model.safetensors")
    assert {f"{layer}.weight" for layer in linear_layers(info)} < set(tensors)
    del tensors[f"{list(linear_layers(info))[-1]}.weight"]
    save_file(tensors, source / "model.safetensors")
    assert refusal(source).rule == "checkpoint.missing-tensor"


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "caps attention scores"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "experts in some layers only"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "experts in some layers only"),
        ("gemma2", {"hidden_activation": "relu"}, "`hidden_activation` 'relu'"),
        ("phi3", {"hidden_act": "gelu"}, "`hidden_act` 'gelu'"),
    ],
)
def test_a_variant_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, edit_json: EditJson, family: Family, config: dict[str, Any], words: str
) -> None:
    source = write_tiny(tmp_path / "source", family)
    edit_json(source / "config.json", **config)
    error = refusal(source)
    assert error.rule == "checkpoint.unsupported" and words in error.message
