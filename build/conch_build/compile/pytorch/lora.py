"""`lora_config`: what adapters may touch, how large they may be, how many are on a GPU at once.

TensorRT-LLM reads PEFT's files itself when a request first names an adapter. It leaves out in silence what it does not
know; that is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conch_build.adapters import CONFIG, adaptable_layers, open_adapter
from conch_build.errors import PlanError
from conch_build.files import read_json
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "up_proj": "mlp_gate",
    "gate_up_proj": "mlp_gate_up",
}
"""The last part of a layer's name -> TensorRT-LLM's name of the module."""


def lora_config(plan: Plan, info: ModelInfo) -> dict[str, Any] | None:
    """None without adapters. Raises PlanError, or CheckpointError for one that does not fit."""
    lora = plan.engine.lora
    if not (lora.adapters or lora.target_modules):
        return None
    return {
        "lora_target_modules": _target_modules(plan, info),
        "max_lora_rank": lora.max_rank,
        "max_loras": lora.max_loaded,
        "max_cpu_loras": max(lora.max_loaded, len(lora.adapters)),
    }


def _target_modules(plan: Plan, info: ModelInfo) -> list[str]:
    """Never none: that would stand for every module, and take the memory of them all."""
    lora = plan.engine.lora
    found: dict[str, str] = {}
    for name, path in lora.adapters.items():
        where = f"engine.lora.adapters.{name}"
        adapter = open_adapter(Path(path), adaptable_layers(info), lora.max_rank)
        found |= dict.fromkeys(_modules(adapter.pairs, where), where)
        if read_json(Path(path) / CONFIG).get("alpha_pattern"):
            raise PlanError(
                "has an `alpha_pattern`, which TensorRT-LLM ignores: it would scale all layers alike",
                where=where,
                fix="Train it without, or merge it into the checkpoint.",
            )
    if lora.target_modules is None:
        return list(found)
    if missing := [module for module in found if module not in lora.target_modules]:
        raise PlanError(
            f"leaves out {', '.join(missing)}, which {found[missing[0]]} adds to",
            where="engine.lora.target_modules",
            fix="Name them too, or leave the key out: then all that the adapters need are taken.",
        )
    return list(lora.target_modules)


def _modules(layers: Iterable[str], where: str) -> Iterable[str]:
    for layer in layers:
        part = layer.rpartition(".")[2]
        if part not in MODULES:
            raise PlanError(
                f"adds to `{layer}`, which the LLM API cannot adapt",
                where=where,
                fix=f"Train it on {', '.join(MODULES)} alone, or merge it into the checkpoint.",
            )
        yield MODULES[part]
