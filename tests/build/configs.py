"""Checkpoints that are their config.json alone: five known models, and how tests make others of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from conch_build.checkpoint import resolve
from conch_build.model_info import ModelInfo
from conch_build.plan import Model

CONFIGS = Path(__file__).parent / "configs"
Name = Literal["llama-3-8b", "llama-3.3-70b", "qwen3-32b", "mixtral-8x7b", "smollm2-135m"]


def described(name: Name) -> ModelInfo:
    """The facts of one of the five."""
    return resolve(Model(checkpoint=str(CONFIGS / name)), backend="tensorrt", needs_weights=False).info


def write_config(folder: Path, base: Name = "llama-3-8b", **keys: Any) -> Path:
    """A config.json alone, like the one of `base` but for `keys`; `...` removes one."""
    config = {**json.loads((CONFIGS / base / "config.json").read_text()), **keys}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder
