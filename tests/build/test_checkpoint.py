"""What is read from a checkpoint: sizes, end tokens, tied heads, fingerprint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from conch_build.checkpoint import resolve
from conch_build.families import COMPILABLE
from conch_build.plan import Model
from tests.build.conftest import EditJson
from tests.build.refusals import refusal
from tests.build.tiny import Family, write_tiny

# What is read


@pytest.mark.parametrize("family", get_args(Family))
def test_every_family_is_read(family: Family, tmp_path: Path) -> None:
    info = resolve(Model(checkpoint=str(write_tiny(tmp_path, family, dtype="bfloat16")))).info
    assert info.architecture in COMPILABLE
    assert (info.num_layers, info.hidden_size, info.intermediate_size) == (2, 64, 128)
    assert (info.num_attention_heads, info.num_kv_heads, info.head_dim) == (4, 2, 16)
    assert (info.vocab_size, info.max_position_embeddings, info.dtype) == (320, 512, "bfloat16")
    assert (info.end_ids, info.bos_id, info.pad_id) == ((2,), 1, 0)
    assert info.chat_template and not info.tied_embeddings and info.quantization is None
    assert info.weight_bytes == 2 * info.parameters
    assert info.sliding_window == (4096 if family.startswith("gemma") else None)
    assert info.num_experts == (4 if family in ("mixtral", "qwen3_moe") else 0)


def test_head_dim_comes_from_the_config_when_it_is_there(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, head_dim=32, attention_bias=True, mlp_bias=True)
    assert resolve(Model(checkpoint=str(path))).info.head_dim == 32


def test_end_ids_are_the_union_of_config_generation_config_and_tokenizer(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", eos_token_id=[7, 0])
    edit_json(checkpoint / "generation_config.json", eos_token_id=5)
    edit_json(checkpoint / "tokenizer_config.json", eos_token={"content": "<|im_start|>"})
    assert resolve(Model(checkpoint=str(checkpoint))).info.end_ids == (0, 1, 5, 7)


def test_end_id_zero_counts_and_pad_may_be_missing(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", eos_token_id=0, pad_token_id=...)
    edit_json(checkpoint / "generation_config.json", eos_token_id=..., pad_token_id=...)
    edit_json(checkpoint / "tokenizer_config.json", eos_token=None)
    info = resolve(Model(checkpoint=str(checkpoint))).info
    assert (info.end_ids, info.pad_id) == ((0,), None)


def test_a_sliding_window_counts_only_when_it_is_used(tmp_path: Path, edit_json: EditJson) -> None:
    mistral = write_tiny(tmp_path / "mistral", "mistral", sliding_window=128)
    assert resolve(Model(checkpoint=str(mistral))).info.sliding_window == 128
    qwen = write_tiny(tmp_path / "qwen", "qwen2")
    edit_json(qwen / "config.json", sliding_window=128, use_sliding_window=False)
    assert resolve(Model(checkpoint=str(qwen))).info.sliding_window is None


def test_a_missing_chat_template_is_seen(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    assert not resolve(Model(checkpoint=str(checkpoint))).info.chat_template


def test_shards_are_read_through_their_index(tiny_sharded: Path, tiny_llama: Path) -> None:
    sharded, single = (resolve(Model(checkpoint=str(path))) for path in (tiny_sharded, tiny_llama))
    assert sharded.info == single.info
    assert sharded.sha256 != single.sha256


def test_the_fingerprint_changes_with_weights_config_and_tokenizer(checkpoint: Path, edit_json: EditJson) -> None:
    def fingerprint() -> str:
        return resolve(Model(checkpoint=str(checkpoint))).sha256

    seen = {fingerprint()}
    assert fingerprint() in seen
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x11")
    seen.add(fingerprint())
    edit_json(checkpoint / "config.json", rope_theta=5.0)
    seen.add(fingerprint())
    edit_json(checkpoint / "tokenizer_config.json", model_max_length=5)
    assert len(seen | {fingerprint()}) == 4


# Tied embeddings


def tie(checkpoint: Path, edit_json: EditJson, *, equal: bool) -> None:
    """Say that the head is tied while the file still holds one, equal to the embedding or not."""
    from safetensors.torch import load_file, save_file

    edit_json(checkpoint / "config.json", tie_word_embeddings=True)
    if equal:
        tensors = load_file(checkpoint / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, checkpoint / "model.safetensors")


def test_a_tied_head_in_the_file_counts_once(checkpoint: Path, edit_json: EditJson) -> None:
    before = resolve(Model(checkpoint=str(checkpoint))).info
    tie(checkpoint, edit_json, equal=True)
    info = resolve(Model(checkpoint=str(checkpoint))).info
    assert info.parameters == before.parameters - 320 * 64
    assert info.notes == ()


def test_a_tied_head_that_differs_is_noted(checkpoint: Path, edit_json: EditJson) -> None:
    tie(checkpoint, edit_json, equal=False)
    (note,) = resolve(Model(checkpoint=str(checkpoint))).info.notes
    assert "`lm_head.weight` differs" in note


def test_an_untied_head_that_is_missing_is_refused_by_name(tmp_path: Path, edit_json: EditJson) -> None:
    path = write_tiny(tmp_path, tie_word_embeddings=True)
    assert resolve(Model(checkpoint=str(path))).info.tied_embeddings
    edit_json(path / "config.json", tie_word_embeddings=False)
    error = refusal(path)
    assert error.rule == "checkpoint.missing-tensor"
    assert "`lm_head.weight`" in error.message
