"""Rotary position embeddings as tables: one row a position, looked up in the graph.

Tables instead of cos/sin nodes: exact for any position in any precision, and fewer nodes a step.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from conch_build.compile.openvino.weights import Floats
from conch_build.errors import CheckpointError

SUPPORTED = ("default", "linear", "llama3", "yarn")
"""Scalings whose frequencies do not depend on how long the sequence is."""


def tables(directory: Path, config: dict[str, Any], positions: int) -> tuple[Floats, Floats]:
    """cos and sin, each [positions, head_dim], by transformers' own formula for the checkpoint's `rope_scaling`."""
    where = f"{directory}/config.json: rope_scaling"
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SUPPORTED:
        raise CheckpointError(
            f"rope scaling `{kind}` is not supported by the openvino backend (it takes {', '.join(SUPPORTED)})",
            where=where,
        )
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta", 10000.0)
    if kind == "default":
        frequencies = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
        factor = 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        try:
            tensor, factor = ROPE_INIT_FUNCTIONS[kind](
                SimpleNamespace(**{**config, "head_dim": dim, "rope_theta": theta}), "cpu"
            )
        except KeyError as error:
            raise CheckpointError(f"rope scaling `{kind}` lacks {error}", where=where) from None
        frequencies = tensor.double().numpy()
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies[None, :]
    angles = np.concatenate([angles, angles], axis=1)
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)
