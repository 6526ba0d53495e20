"""`lora_config`: what adapters may touch, how large they may be, how many are on a GPU at once.

TensorRT-LLM reads PEFT's files itself when a request first names an adapter.
"""

from __future__ import annotations

from typing import Any

from conch_build.compile.gpu_adapters import MODULES, AdapterReader, target_modules
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

READER = AdapterReader("the LLM API", {**MODULES, "gate_up_proj": "mlp_gate_up"}, "merge it into the checkpoint")


def lora_config(plan: Plan, info: ModelInfo) -> dict[str, Any] | None:
    """None without adapters. Raises PlanError, or CheckpointError for one that does not fit."""
    lora = plan.engine.lora
    if not (lora.adapters or lora.target_modules):
        return None
    return {
        # Never none: that would stand for every module, and take the memory of them all.
        "lora_target_modules": list(target_modules(plan, info, READER)),
        "max_lora_rank": lora.max_rank,
        "max_loras": lora.max_loaded,
        "max_cpu_loras": max(lora.max_loaded, len(lora.adapters)),
    }
