"""Damaged config.json files: each value of another kind is refused by its key, and nothing is tried with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build.checkpoint import examine
from conch_build.config_types import MOST_LAYERS
from conch_build.plan import Model
from tests.build.configs import write_config

WRONG: list[tuple[str, Any]] = [
    ("num_hidden_layers", MOST_LAYERS + 1),
    ("num_hidden_layers", 10**400),
    ("num_attention_heads", 0),
    ("hidden_size", 10**12),
    ("hidden_size", "4096"),
    ("rope_theta", "x"),
    ("rope_theta", -1),
    ("rope_scaling", "yarn"),
    ("rope_parameters", 3),
    ("quantization_config", ["fp8"]),
    ("tie_word_embeddings", "false"),
    ("eos_token_id", [1, "2"]),
    ("mlp_only_layers", 3),
    ("model_type", ["llama"]),
    ("torch_dtype", 16),
]


def told(folder: Path) -> str:
    checkpoint, problems = examine(Model(checkpoint=str(folder)), backend="pytorch", needs_weights=False)
    assert checkpoint is None
    assert all(problem.rule == "checkpoint.config" for problem in problems)
    return "; ".join(problem.message for problem in problems)


@pytest.mark.parametrize(("key", "value"), WRONG, ids=[f"{key}-{number}" for number, (key, _) in enumerate(WRONG)])
def test_a_value_of_another_kind_is_refused_by_its_key(tmp_path: Path, key: str, value: Any) -> None:
    message = told(write_config(tmp_path / "a", **{key: value}))
    assert f"`{key}`" in message and "config.json" in message
    assert len(message) < 300


def test_all_are_told_at_once(tmp_path: Path) -> None:
    message = told(write_config(tmp_path / "a", rope_theta="x", rope_scaling=3))
    assert "`rope_theta` must be a number above 0" in message
    assert "`rope_scaling` must be a mapping" in message


def test_more_experts_than_can_be_counted_are_refused(tmp_path: Path) -> None:
    assert "more than a model can have" in told(write_config(tmp_path / "a", "mixtral-8x7b", num_local_experts=10**6))


def test_end_ids_of_a_generation_config_are_ids(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "a")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [[2]]}))
    assert "`eos_token_id` must be a token id or a list of them" in told(folder)
