"""How each damaged, unsafe or unfit checkpoint is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from conch_build.checkpoint import resolve
from conch_build.plan import Model
from tests.build.conftest import EditJson
from tests.build.refusals import refusal
from tests.build.tiny import write_tiny

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 230016\n"
WEB_PAGE = b"<!DOCTYPE html><html><body>401 Unauthorized</body></html>"
INDEX = "model.safetensors.index.json"


# Damaged files


@pytest.mark.parametrize(
    ("content", "rule", "cause"),
    [
        (LFS_POINTER, "checkpoint.git-lfs-pointer", "git-lfs pointer"),
        (WEB_PAGE, "checkpoint.web-page", "web page"),
        (b"", "checkpoint.empty-file", "0 bytes"),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json"],
)
def test_a_file_that_is_not_the_file_is_named_with_size_cause_and_fix(
    checkpoint: Path, name: str, content: bytes, rule: str, cause: str
) -> None:
    (checkpoint / name).write_bytes(content)
    error = refusal(checkpoint)
    assert error.rule == rule
    assert error.where == str(checkpoint / name)
    assert cause in error.what and str(len(content)) in error.what
    assert error.fix


def test_a_truncated_file_tells_both_sizes(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 1000)
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.truncated"
    assert f"header says {size:,} bytes, the file has {size - 1000:,}" in error.message


@pytest.mark.parametrize("size", [4, 100])
def test_a_file_cut_in_its_header_is_refused(checkpoint: Path, size: int) -> None:
    os.truncate(checkpoint / "model.safetensors", size)
    assert refusal(checkpoint).rule in ("checkpoint.truncated", "checkpoint.not-safetensors")


@pytest.mark.parametrize("content", [b"PK\x03\x04" * 50, (20).to_bytes(8, "little") + b"x" * 40])
def test_a_file_of_another_kind_is_refused(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    assert refusal(checkpoint).rule == "checkpoint.not-safetensors"


def test_bytes_after_the_last_tensor_are_refused(checkpoint: Path) -> None:
    with (checkpoint / "model.safetensors").open("ab") as file:
        file.write(b"extra")
    assert "5 bytes more" in refusal(checkpoint).message


def test_missing_shards_are_listed(sharded: Path) -> None:
    for number in (2, 4):
        (sharded / f"model-0000{number}-of-00004.safetensors").unlink()
    error = refusal(sharded)
    assert error.rule == "checkpoint.missing-shard"
    assert "4 shards, 2 of them missing: model-00002-of-00004" in error.message


def test_an_index_that_points_outside_the_checkpoint_is_refused(sharded: Path, edit_json: EditJson) -> None:
    edit_json(sharded / INDEX, weight_map={"a": "../../secret.safetensors"})
    assert "../../secret.safetensors" in refusal(sharded).message


@pytest.mark.parametrize("weight_map", [..., {}, []])
def test_an_index_without_its_map_is_refused(sharded: Path, edit_json: EditJson, weight_map: Any) -> None:
    edit_json(sharded / INDEX, weight_map=weight_map)
    assert refusal(sharded).rule == "checkpoint.index"


def test_every_damaged_file_is_told_at_once(sharded: Path) -> None:
    os.truncate(sharded / "model-00001-of-00004.safetensors", 5000)
    (sharded / "model-00002-of-00004.safetensors").unlink()
    (sharded / "tokenizer.json").write_bytes(LFS_POINTER)
    message = refusal(sharded).message
    for part in ("model-00001-of-00004", "model-00002-of-00004", "tokenizer.json"):
        assert part in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("text", ["{", "[]", "{'a': 1}", "\x00\x01"])
def test_invalid_json_is_refused(checkpoint: Path, name: str, text: str) -> None:
    (checkpoint / name).write_text(text)
    assert refusal(checkpoint).rule == "checkpoint.invalid-json"


def test_a_tensor_that_is_missing_is_refused(sharded: Path, edit_json: EditJson) -> None:
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    edit_json(sharded / INDEX, weight_map={k: v for k, v in index.items() if "00003" not in v})
    assert refusal(sharded).rule == "checkpoint.missing-tensor"


def test_a_config_of_another_model_is_refused(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", intermediate_size=256)
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.tensor-shape"
    assert "gate_proj.weight` is [128, 64], not [256, 64]" in error.message


@pytest.mark.parametrize(
    ("family", "tensor"),
    [("qwen2", "model.layers.1.self_attn.v_proj.bias"), ("qwen3", "model.layers.0.self_attn.k_norm.weight")],
)
def test_a_tensor_that_only_its_family_has_must_be_there(tmp_path: Path, family: Any, tensor: str) -> None:
    from safetensors.torch import load_file, save_file

    weights = write_tiny(tmp_path, family) / "model.safetensors"
    tensors = load_file(weights)
    del tensors[tensor]
    save_file(tensors, weights)
    error = refusal(tmp_path)
    assert error.rule == "checkpoint.missing-tensor" and tensor in error.message


def test_another_activation_than_the_familys_is_refused(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", hidden_act="gelu")
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.unsupported" and "gelu" in error.message


@pytest.mark.parametrize("value", [..., "64", 0, -1, 6.5, True])
def test_a_config_without_a_usable_size_is_refused(checkpoint: Path, edit_json: EditJson, value: Any) -> None:
    edit_json(checkpoint / "config.json", hidden_size=value)
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.config"
    assert "`hidden_size`" in error.message


# Unfit or unsafe checkpoints


def test_no_config_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    assert refusal(checkpoint).rule == "checkpoint.no-config"


def test_no_weights_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert refusal(checkpoint).rule == "checkpoint.no-weights"


def test_no_tokenizer_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert refusal(checkpoint).rule == "checkpoint.no-tokenizer"
    (checkpoint / "tokenizer.model").write_bytes(b"\n")
    assert "save_pretrained" in refusal(checkpoint).message


def test_a_tokenizer_without_vocabulary_is_refused(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": {}}')
    assert refusal(checkpoint).rule == "checkpoint.tokenizer"


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], [], None, ...])
def test_an_architecture_that_cannot_be_compiled_is_refused(checkpoint: Path, edit_json: EditJson, names: Any) -> None:
    edit_json(checkpoint / "config.json", architectures=names)
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.architecture"
    assert "LlamaForCausalLM" in error.message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_its_own_needs_the_explicit_flag(checkpoint: Path, edit_json: EditJson, name: str) -> None:
    edit_json(checkpoint / name, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    (checkpoint / "modeling.py").write_text("raise SystemExit\n")
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.remote-code"
    assert "modeling.py" in error.message and "trust_remote_code" in error.message
    assert resolve(Model(checkpoint=str(checkpoint), trust_remote_code=True))


def as_pickle(checkpoint: Path, payload: Any = None) -> None:
    import torch
    from safetensors.torch import load_file

    tensors = load_file(checkpoint / "model.safetensors")
    torch.save(tensors if payload is None else payload, checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()


def test_pickle_weights_are_refused_unless_allowed(checkpoint: Path, tmp_path: Path) -> None:
    before = resolve(Model(checkpoint=str(checkpoint))).info
    as_pickle(checkpoint)
    error = refusal(checkpoint)
    assert error.rule == "checkpoint.pickle"
    assert "allow_pickle" in error.message
    converted = resolve(Model(checkpoint=str(checkpoint), allow_pickle=True), tmp_path / "cache")
    assert converted.info == before
    assert converted.path.is_relative_to(tmp_path / "cache")


class Payload:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("pickle-ran",))


def test_a_pickle_that_would_run_code_is_refused_even_when_allowed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    as_pickle(checkpoint, {"weight": Payload()})
    assert refusal(checkpoint, tmp_path / "cache", allow_pickle=True).rule == "checkpoint.pickle"
    assert not Path("pickle-ran").exists()
