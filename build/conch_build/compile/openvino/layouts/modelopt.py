"""ModelOpt's unified checkpoint, as `conch_build.quantized` describes it: int8, int8_sq, int4_awq and fp8.

int4_awq packs outputs 2r and 2r+1 into the low and high nibble of row r. fp8 becomes bf16, which holds it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from conch_build.compile.openvino.layouts.base import DENSE, Source, Wanted, refuse
from conch_build.compile.openvino.stored import Activations, Linear
from conch_build.weights import Tensor

_STORED = {"W8A16": "I8", "W8A8_SQ_PER_CHANNEL": "I8", "W4A16_AWQ": "U8", "FP8": "F8_E4M3"}
"""`quant_algo` -> safetensors dtype of packed weights."""

_GROUP_SIZES = (16, 32, 64, 128, 256)


class ModelOpt:
    """See the module. Raises CheckpointError for an algorithm that it cannot read."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._algorithm = config.get("quant_algo")
        if self._algorithm not in _STORED:
            refuse("quant_algo", self._algorithm, where, f"ModelOpt is read with {', '.join(_STORED)}.")
        self.computes_in_f32 = self._algorithm != "W8A8_SQ_PER_CHANNEL"

    def wanted(self, layer: str, shape: tuple[int, int], stored: Mapping[str, Tensor]) -> dict[str, Wanted] | None:
        weight = stored.get(f"{layer}.weight")
        scaled = f"{layer}.weight_scale" in stored
        if not scaled and (weight is None or weight.dtype in DENSE):
            return None
        rows, columns = shape
        dtype = _STORED[str(self._algorithm)]
        packed_rows = -(-rows // 2) if dtype == "U8" else rows
        scales: dict[str, tuple[tuple[int, ...], ...]] = {
            "I8": ((rows,),),
            "U8": tuple((rows, columns // size) for size in _GROUP_SIZES if columns % size == 0),
            "F8_E4M3": ((), (1,)),
        }
        wanted = {
            f"{layer}.weight": Wanted((dtype,), ((packed_rows, columns),)),
            f"{layer}.weight_scale": Wanted(DENSE, scales[dtype]),
        }
        if f"{layer}.pre_quant_scale" in stored or self._algorithm == "W8A8_SQ_PER_CHANNEL":
            wanted[f"{layer}.pre_quant_scale"] = Wanted(DENSE, ((columns,),))
        if self._algorithm in ("FP8", "W8A8_SQ_PER_CHANNEL"):
            wanted[f"{layer}.input_scale"] = Wanted(DENSE, ((), (1,)))
        return wanted

    def packs(self, layer: str, source: Source) -> bool:
        return f"{layer}.weight_scale" in source

    def read(self, layer: str, source: Source) -> Linear:
        import torch

        weight, scale = source.tensor(f"{layer}.weight"), source.floats(f"{layer}.weight_scale")
        bias, pre_quant_scale = (source.optional(f"{layer}.{part}") for part in ("bias", "pre_quant_scale"))
        step = source.optional(f"{layer}.input_scale")
        if weight.dtype == torch.uint8:
            return Linear(_unpack_int4(weight.numpy()), 4, scale, bias, pre_quant_scale)
        fp8 = weight.dtype == torch.float8_e4m3fn
        values = weight.bfloat16().view(torch.uint16).numpy() if fp8 else weight.numpy()
        activations = None if step is None else Activations("fp8" if fp8 else "int8", float(step.reshape(())))
        return Linear(values, 16 if fp8 else 8, scale.reshape(-1), bias, pre_quant_scale, activations)


def _unpack_int4(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """uint8 [out/2, in] -> int8 [out, in] with values -8..7."""
    signed = np.empty((packed.shape[0] * 2, packed.shape[1]), np.int8)
    signed[0::2] = ((packed & 15) ^ 8).astype(np.int8) - 8
    signed[1::2] = ((packed >> 4) ^ 8).astype(np.int8) - 8
    return signed
