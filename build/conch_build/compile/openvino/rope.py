"""Rotary position embeddings as tables: one row a position, looked up in the graph.

Tables instead of cos/sin nodes: exact for any position in any precision, and fewer nodes a step.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from conch_build.compile.openvino.stored import Floats
from conch_build.errors import CheckpointError

SUPPORTED = ("default", "linear", "llama3", "yarn", "longrope")
"""Scalings whose frequencies do not depend on how long the sequence is, or of which one set can be chosen."""

Tables = tuple[Floats, Floats]
"""cos and sin, each [positions, rotary_dim]."""


def tables(config: dict[str, Any], positions: int, *, where: str) -> Tables:
    """By transformers' own formula for the config's `rope_scaling`.

    LongRoPE has frequencies for short and for long sequences: these are the long ones if `positions` is beyond the
    length that the model was first trained on.
    """
    where = f"{where}: rope_scaling"
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SUPPORTED:
        raise CheckpointError(
            f"rope scaling `{kind}` is not supported by the openvino backend (it takes {', '.join(SUPPORTED)})",
            where=where,
        )
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta", 10000.0)
    if kind == "default":
        dim = int(head_dim * config.get("partial_rotary_factor", 1.0))
        frequencies = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
        factor = 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        settings = SimpleNamespace(**{**config, "head_dim": head_dim, "rope_theta": theta})
        try:
            tensor, factor = ROPE_INIT_FUNCTIONS[kind](settings, "cpu", seq_len=positions)
        except KeyError as error:
            raise CheckpointError(f"rope scaling `{kind}` lacks {error}", where=where) from None
        except RuntimeError:  # torch's, of shapes
            raise CheckpointError(f"rope scaling `{kind}` has factors of another head size", where=where) from None
        frequencies = tensor.double().numpy()
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies[None, :]
    angles = np.concatenate([angles, angles], axis=1)
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def local_tables(config: dict[str, Any], positions: int) -> Tables | None:
    """Those of the layers with a sliding window, in families where they have a base of their own (Gemma 3)."""
    if "rope_local_base_freq" not in config:
        return None
    local = {**config, "rope_theta": config["rope_local_base_freq"], "rope_scaling": None}
    return tables(local, positions, where="")
