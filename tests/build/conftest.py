"""Fixtures of the build side: a tiny real checkpoint, made once, copied for each test that damages it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.build.tiny import write_tiny

EditJson = Callable[..., None]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, one bf16 safetensors file. Shared: do not write to it."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "llama", dtype="bfloat16")


@pytest.fixture(scope="session")
def tiny_sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in four shards with an index. Shared: do not write to it."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "sharded", dtype="bfloat16", shard_bytes=60_000)


@pytest.fixture
def checkpoint(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may damage."""
    return shutil.copytree(tiny_llama, tmp_path / "checkpoint")


@pytest.fixture
def sharded(tiny_sharded: Path, tmp_path: Path) -> Path:
    """A copy of the sharded one that a test may damage."""
    return shutil.copytree(tiny_sharded, tmp_path / "sharded")


@pytest.fixture
def edit_json() -> EditJson:
    """`edit_json(path, key=value)` sets keys; `...` removes one."""

    def edit(path: Path, **values: Any) -> None:
        data = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))

    return edit
