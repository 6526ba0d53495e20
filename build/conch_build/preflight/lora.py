"""Rules about LoRA adapters: their names, their memory, and whether each fits the model, as `adapters` judges it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from conch_build.adapters import adaptable_layers, examine
from conch_build.machine import memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import Violation, rule
from conch_build.sizing import engine_weight_bytes
from conch_build.units import format_bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@rule("lora.name")
def _adapters_can_be_named(plan: Plan) -> Iterator[Violation]:
    for name in plan.engine.lora.adapters:
        key = f"engine.lora.adapters.{name}"
        if not _NAME.fullmatch(name):
            fix = "Use up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit."
            yield Violation(key, f"{name!r} cannot be a model's name in a request", fix)
        elif name == plan.name:
            yield Violation(key, "it is the model's own name", "Give the adapter another one.")


@rule("lora.adapter")
def _adapters_fit(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    lora = plan.engine.lora
    layers = adaptable_layers(info)
    for name, path in lora.adapters.items():
        for error in examine(Path(path), layers, lora.max_rank)[1]:
            message = f"{error.where}: {error.what}"
            yield Violation(f"engine.lora.adapters.{name}", message, error.fix or "", rule=error.rule)


@rule("lora.memory")
def _machine_holds_the_weights_twice(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    lora = plan.engine.lora
    if not lora.adapters:
        return
    memory = memory_bytes()
    weights = 2 * engine_weight_bytes(info.parameters, info.embedding_parameters, plan.quantization.format)
    elements = sum(rows + columns for rows, columns in adaptable_layers(info).values())
    slots = 4 * elements * lora.max_rank * min(lora.max_loaded, len(lora.adapters))
    if weights + slots + plan.engine.kv_cache.size > memory:
        yield Violation(
            "engine.lora",
            f"a step with adapters has a network of its own: twice the weights ({format_bytes(weights)}), up to "
            f"{format_bytes(slots)} of adapters and the KV cache do not fit this machine's {format_bytes(memory)}",
            "Lower `engine.kv_cache.size` or `engine.lora.max_loaded`, quantize further, or use a larger machine.",
        )
