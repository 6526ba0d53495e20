"""AutoAWQ's `gemm` layout: 4 bits with zero points, packed along the outputs.

    X.qweight  int32 [in, out/8]        X.qzeros  int32 [in/group, out/8]        X.scales  f16 [in/group, out]

    weight[o, i] = (qweight[i, o] - qzeros[i // group, o]) * scales[i // group, o]

A word's nibbles, lowest first, are the outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from conch_build.compile.openvino.layouts.base import DENSE, Source, Wanted, group_count, refuse, size_of_group
from conch_build.compile.openvino.stored import Linear, centred, unpack
from conch_build.weights import Tensor

_PARTS = ("qweight", "qzeros", "scales")
_NIBBLE_OF_OUTPUT = [0, 4, 1, 5, 2, 6, 3, 7]


class Awq:
    """See the module. Raises CheckpointError for a config that it cannot read."""

    computes_in_f32 = True

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._where = where
        self._group_size = size_of_group(config, "group_size", where)
        if config.get("bits") != 4:
            refuse("bits", config.get("bits"), where, "AWQ is read with 4 bits.")
        for key, value, supported in (
            ("version", str(config.get("version", "gemm")).lower(), "gemm"),
            ("backend", str(config.get("backend", "autoawq")).lower(), "autoawq"),
            ("zero_point", config.get("zero_point", True), True),
        ):
            if value != supported:
                refuse(key, config[key], where, f"AWQ is read with `{key}: {str(supported).lower()}`.")

    def wanted(self, layer: str, shape: tuple[int, int], stored: Mapping[str, Tensor]) -> dict[str, Wanted] | None:
        if not any(f"{layer}.{part}" in stored for part in _PARTS):
            return None
        rows, columns = shape
        groups = group_count(columns, self._group_size, layer, self._where)
        return {
            f"{layer}.qweight": Wanted(("I32",), ((columns, -(-rows // 8)),)),
            f"{layer}.qzeros": Wanted(("I32",), ((groups, -(-rows // 8)),)),
            f"{layer}.scales": Wanted(DENSE, ((groups, rows),)),
        }

    def packs(self, layer: str, source: Source) -> bool:
        return f"{layer}.qweight" in source

    def read(self, layer: str, source: Source) -> Linear:
        values, zeros = (_outputs_first(source.tensor(f"{layer}.{part}").numpy()) for part in ("qweight", "qzeros"))
        values, zero_point = centred(values, zeros, 4)
        scale = np.ascontiguousarray(source.floats(f"{layer}.scales").T)
        return Linear(values, 4, scale, source.optional(f"{layer}.bias"), zero_point=zero_point)


def _outputs_first(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """int32 [n, out/8] -> uint8 [out, n]"""
    nibbles = unpack(words, 4).reshape(len(words), -1, 8)[:, :, _NIBBLE_OF_OUTPUT]
    return np.ascontiguousarray(nibbles.reshape(len(words), -1).T)
