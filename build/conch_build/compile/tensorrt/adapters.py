"""LoRA adapters for an engine: the modules it must leave room in, and the conversion of PEFT's weights.

`hf_lora_convert.py` writes one folder an adapter, named by its id, as Triton's prefetch reads them.
"""

from __future__ import annotations

from pathlib import Path

from conch_build.compile import gpu_adapters
from conch_build.compile.container import EXAMPLES
from conch_build.compile.gpu_adapters import MODULES, AdapterReader
from conch_build.compile.precision import gpu_dtype
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

CONVERTER = f"{EXAMPLES}/hf_lora_convert.py"
READER = AdapterReader(
    "hf_lora_convert.py",
    {**MODULES, "qkv_proj": "attn_qkv", "gate_up_proj": "mlp_h_to_4h"},
    "set `engine.backend: pytorch`",
)


def target_modules(plan: Plan, info: ModelInfo) -> tuple[str, ...]:
    """As `gpu_adapters.target_modules` finds them for an engine."""
    return gpu_adapters.target_modules(plan, info, READER)


def convert_argv(plan: Plan, info: ModelInfo, adapter: str, out: Path) -> list[str]:
    """The conversion of one adapter, into numbers of the type that the engine's LoRA plugin has."""
    path = plan.engine.lora.adapters[adapter]
    return ["python3", CONVERTER, "-i", path, "-o", str(out), "--storage-type", gpu_dtype(plan, info)]
