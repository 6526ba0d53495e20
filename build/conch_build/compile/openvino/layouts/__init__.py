"""Checkpoints that arrive quantized: how each layout stores a linear layer, and what it cannot be.

One module a layout. It reads the checkpoint's `quantization_config`, names the tensors that a packed layer must
have, and reads them as a `Linear` without changing a value.

    modelopt            NVIDIA ModelOpt's unified checkpoint (what `quantize` writes, too)
    awq                 AutoAWQ, 4 bits with zero points
    gptq                GPTQ, 4 and 8 bits
    compressed_tensors  llm-compressor: packed 4 and 8 bits, int8, fp8
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conch_build.compile.openvino.layouts.awq import Awq
from conch_build.compile.openvino.layouts.base import DENSE, Layout, Wanted
from conch_build.compile.openvino.layouts.compressed_tensors import CompressedTensors
from conch_build.compile.openvino.layouts.gptq import Gptq
from conch_build.compile.openvino.layouts.modelopt import ModelOpt
from conch_build.errors import CheckpointError
from conch_build.families import EMBEDDING
from conch_build.weights import Tensor

__all__ = ["LAYOUTS", "Layout", "Wanted", "layout_of", "method_of", "wanted_tensors"]

LAYOUTS: dict[str, Callable[[Mapping[str, Any], str], Layout]] = {
    "modelopt": ModelOpt,
    "awq": Awq,
    "gptq": Gptq,
    "compressed-tensors": CompressedTensors,
}


def method_of(config: Mapping[str, Any]) -> str:
    """Who quantized, by the checkpoint's own word: its `quant_method`."""
    method = config.get("quant_method") or ("modelopt" if "quant_algo" in config else "unknown method")
    return str(method).lower()


def layout_of(config: Mapping[str, Any], folder: Path) -> Layout:
    """The layout that a `quantization_config` describes. Raises CheckpointError naming the key it cannot read."""
    method, where = method_of(config), str(folder / "config.json")
    if method not in LAYOUTS:
        raise CheckpointError(
            f"is quantized by `quant_method: {method}`, which cannot be compiled",
            where=where,
            fix=f"Name the original checkpoint, or one of these: {', '.join(LAYOUTS)}.",
            rule="checkpoint.quant-method",
        )
    return LAYOUTS[method](config, where)


def wanted_tensors(
    layout: Layout | None, dense: Mapping[str, tuple[int, ...]], stored: Mapping[str, Tensor], where: str
) -> dict[str, Wanted]:
    """What must be stored in place of each tensor in `dense` (name -> shape of the unquantized checkpoint).

    Raises CheckpointError, located at `where`, if the layout does not fit the checkpoint at all.
    """
    wanted: dict[str, Wanted] = {}
    for name, shape in dense.items():
        packed = None
        if layout is not None and len(shape) == 2 and name != EMBEDDING:
            packed = layout.wanted(name.removesuffix(".weight"), (shape[0], shape[1]), stored)
        wanted.update(packed or {name: Wanted(DENSE, (shape,))})
    if layout is not None and wanted.keys() == dense.keys():
        raise CheckpointError(
            "has a `quantization_config`, and none of its layers is packed",
            where=where,
            fix="Use the config.json that belongs to these weights.",
            rule="checkpoint.quantization",
        )
    return wanted
