"""LoRA adapters for an engine: the modules it must leave room in, and the conversion of PEFT's weights.

`hf_lora_convert.py` writes one folder an adapter, named by its id, as Triton's prefetch reads them. It leaves out in
silence what it does not know; that is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conch_build.adapters import CONFIG, adaptable_layers, open_adapter
from conch_build.compile.container import EXAMPLES
from conch_build.compile.precision import gpu_dtype
from conch_build.errors import PlanError
from conch_build.files import read_json
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

CONVERTER = f"{EXAMPLES}/hf_lora_convert.py"

MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "up_proj": "mlp_gate",
    "gate_up_proj": "mlp_h_to_4h",
}
"""The last part of a layer's name -> TensorRT-LLM's name of the module."""


def target_modules(plan: Plan, info: ModelInfo) -> tuple[str, ...]:
    """Modules that adapters may touch: the plan's, else those its adapters do; none if it has neither.

    Raises PlanError, or CheckpointError for an adapter that does not fit the model.
    """
    asked = plan.engine.lora.target_modules
    found: dict[str, str] = {}
    for name, path in plan.engine.lora.adapters.items():
        where = f"engine.lora.adapters.{name}"
        adapter = open_adapter(Path(path), adaptable_layers(info), plan.engine.lora.max_rank)
        found |= dict.fromkeys(_modules(adapter.pairs, where), where)
        if read_json(Path(path) / CONFIG).get("alpha_pattern"):
            raise PlanError(
                "has an `alpha_pattern`, which the converter ignores: it would scale all layers alike",
                where=where,
                fix="Train it without, or set `engine.backend: pytorch`.",
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


def convert_argv(plan: Plan, info: ModelInfo, adapter: str, out: Path) -> list[str]:
    """The conversion of one adapter, into numbers of the type that the engine's LoRA plugin has."""
    path = plan.engine.lora.adapters[adapter]
    return ["python3", CONVERTER, "-i", path, "-o", str(out), "--storage-type", gpu_dtype(plan, info)]


def _modules(layers: Iterable[str], where: str) -> Iterable[str]:
    for layer in layers:
        part = layer.rpartition(".")[2]
        if part not in MODULES:
            raise PlanError(
                f"adds to `{layer}`, which engines cannot adapt",
                where=where,
                fix=f"Train it on {', '.join(MODULES)} alone, or set `engine.backend: pytorch`.",
            )
        yield MODULES[part]
