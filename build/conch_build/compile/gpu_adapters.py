"""Which modules of a model its LoRA adapters touch, in TensorRT-LLM's names.

TensorRT-LLM leaves out in silence what it does not know of an adapter; that is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
}
"""The last part of a layer's name -> TensorRT-LLM's name of the module, as every reader has it."""


@dataclass(frozen=True)
class AdapterReader:
    """What reads PEFT's files on the GPU machine."""

    name: str
    modules: Mapping[str, str]
    instead: str
    """What else a person may do with an adapter that it does not take."""


def target_modules(plan: Plan, info: ModelInfo, reader: AdapterReader) -> tuple[str, ...]:
    """Modules that adapters may touch: the plan's, else those its adapters do; none if it has neither.

    Raises PlanError, or CheckpointError for an adapter that does not fit the model.
    """
    asked = plan.engine.lora.target_modules
    found: dict[str, str] = {}
    for name, path in plan.engine.lora.adapters.items():
        where = f"engine.lora.adapters.{name}"
        adapter = open_adapter(Path(path), adaptable_layers(info), plan.engine.lora.max_rank)
        found |= dict.fromkeys(_modules(adapter.pairs, where, reader), where)
        if read_json(Path(path) / CONFIG).get("alpha_pattern"):
            raise PlanError(
                f"has an `alpha_pattern`, which {reader.name} ignores: it would scale all layers alike",
                where=where,
                fix=f"Train it without, or {reader.instead}.",
            )
    if asked is None:
        return tuple(found)
    if missing := [module for module in found if module not in asked]:
        raise PlanError(
            f"leaves out {', '.join(missing)}, which {found[missing[0]]} adds to",
            where="engine.lora.target_modules",
            fix="Name them too, or leave the key out: then all that the adapters need are taken.",
        )
    return tuple(asked)


def _modules(layers: Iterable[str], where: str, reader: AdapterReader) -> Iterable[str]:
    for layer in layers:
        part = layer.rpartition(".")[2]
        if part not in reader.modules:
            raise PlanError(
                f"adds to `{layer}`, which {reader.name} cannot adapt",
                where=where,
                fix=f"Train it on {', '.join(reader.modules)} alone, or {reader.instead}.",
            )
        yield reader.modules[part]
