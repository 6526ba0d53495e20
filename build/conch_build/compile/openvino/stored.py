"""One linear layer as a checkpoint stores it: packed values and what turns them back into weights.

Knows neither files nor OpenVINO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Activations:
    """How a layer's input is rounded before it is multiplied: clamp(round(x / scale) + zero_point), and back."""

    kind: Literal["int8", "fp8"]
    scale: float | None
    """The step; None (fp8 only): a token's largest value / 448."""
    zero_point: int = 0


@dataclass(frozen=True)
class Linear:
    """weight = (values - zero_point) * scale; y = round(x[:, input_order] * pre_quant_scale) @ weight.T + bias."""

    values: npt.NDArray[Any]
    """[out, in]: float32, float16, bf16 bits as uint16; int8, or uint8 with a zero point, when `bits` is 8 or 4."""
    bits: int
    """32, 16, 8 or 4."""
    scale: Floats | None = None
    """[out] or [out, groups] of 8 or 4 bits, [1] or [out] of fp8; None for dense weights."""
    bias: Floats | None = None
    pre_quant_scale: Floats | None = None
    """[in]"""
    activations: Activations | None = None
    """None: the input stays in floating point, or is rounded as the kernels like."""
    zero_point: npt.NDArray[np.uint8] | None = None
    """[out, groups]; None: 0."""
    input_order: npt.NDArray[np.int64] | None = None
    """[in]: the column of the input that each column of `values` multiplies; None: as they come."""

    def rows(self, rows: slice) -> Linear:
        """The layer of these outputs alone."""
        scale, bias, zero = self.scale, self.bias, self.zero_point
        return replace(
            self,
            values=self.values[rows],
            scale=scale if scale is None or len(scale) == 1 else scale[rows],
            bias=None if bias is None else bias[rows],
            zero_point=None if zero is None else zero[rows],
        )


def centred(
    values: npt.NDArray[np.uint8], zero_point: npt.NDArray[np.uint8], bits: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
    """`values` and `zero_point` of a Linear: signed and without the latter, if that is the middle everywhere."""
    middle = 1 << (bits - 1)
    if (zero_point == middle).all():
        return (values.astype(np.int16) - middle).astype(np.int8), None
    return values, zero_point


def unpack(words: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.uint8]:
    """int32 [..., n] -> uint8 [..., n * 32 / bits]: the lowest bits come first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return parts.astype(np.uint8).reshape(*words.shape[:-1], -1)
