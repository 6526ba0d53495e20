"""GPTQ's layout: 4 or 8 bits with zero points; weights packed along the inputs, zero points along the outputs.

    X.qweight  int32 [in*bits/32, out]      X.qzeros  int32 [groups, out*bits/32]
    X.scales   f16 [groups, out]            X.g_idx   int32 [in]: each input's group

    weight[o, i] = (qweight[i, o] - zero_point[g_idx[i], o]) * scales[g_idx[i], o]

The first version (`checkpoint_format: gptq`) stores zero points less one, taken from whole words: a borrow went into
the neighbour, and is given back by an addition to whole words. `gptq_v2` stores them as they are. With `desc_act` the
groups are not neighbours: the columns are sorted by group, and the input with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conch_build.compile.openvino.layouts.base import DENSE, Source, Wanted, group_count, refuse, size_of_group
from conch_build.compile.openvino.stored import Linear, centred, unpack
from conch_build.errors import CheckpointError
from conch_build.weights import Tensor

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_ONES = {4: 0x11111111, 8: 0x01010101}


class Gptq:
    """See the module. Raises CheckpointError for a config that it cannot read."""

    computes_in_f32 = True

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._where = where
        bits = config.get("bits")
        if bits not in _ONES:
            refuse("bits", bits, where, "GPTQ is read with 4 or 8 bits.")
        self._bits = int(bits)
        self._group_size = size_of_group(config, "group_size", where)
        self._shuffled = bool(config.get("desc_act", False))
        key = "checkpoint_format" if "checkpoint_format" in config else "format"
        version = config.get(key, "gptq")
        if version not in ("gptq", "gptq_v2"):
            refuse(key, version, where, "GPTQ is read as `gptq` or `gptq_v2`.")
        self._offset = _ONES[self._bits] if version == "gptq" else 0
        if config.get("dynamic"):
            refuse("dynamic", config["dynamic"], where, "All layers must be quantized alike.")
        if config.get("is_marlin_format"):
            refuse("is_marlin_format", True, where, "GPTQ is read as `gptq` or `gptq_v2`.")
        if config.get("pack_dtype", "int32") != "int32":
            refuse("pack_dtype", config["pack_dtype"], where, "GPTQ is read from words of int32.")

    def wanted(self, layer: str, shape: tuple[int, int], stored: Mapping[str, Tensor]) -> dict[str, Wanted] | None:
        if not any(f"{layer}.{part}" in stored for part in _PARTS):
            return None
        rows, columns = shape
        groups = group_count(columns, self._group_size, layer, self._where)
        a_word = 32 // self._bits
        wanted = {
            f"{layer}.qweight": Wanted(("I32",), ((-(-columns // a_word), rows),)),
            f"{layer}.qzeros": Wanted(("I32",), ((groups, -(-rows // a_word)),)),
            f"{layer}.scales": Wanted(DENSE, ((groups, rows),)),
        }
        if self._shuffled or f"{layer}.g_idx" in stored:
            wanted[f"{layer}.g_idx"] = Wanted(("I32", "I64"), ((columns,),))
        return wanted

    def packs(self, layer: str, source: Source) -> bool:
        return f"{layer}.qweight" in source

    def read(self, layer: str, source: Source) -> Linear:
        words, zero_words = (source.tensor(f"{layer}.{part}").numpy() for part in ("qweight", "qzeros"))
        zero_words = (zero_words.view(np.uint32) + np.uint32(self._offset)).view(np.int32)
        values = unpack(np.ascontiguousarray(words.T), self._bits)
        scale = np.ascontiguousarray(source.floats(f"{layer}.scales").T)
        zeros = np.ascontiguousarray(unpack(zero_words, self._bits)[:, : len(scale)].T)
        order = None
        if f"{layer}.g_idx" in source:
            order = input_order(source.tensor(f"{layer}.g_idx").numpy(), scale.shape[1], layer, self._where)
        if order is not None:
            values = np.ascontiguousarray(values[:, order])
        values, zero_point = centred(values, zeros, self._bits)
        return Linear(
            values, self._bits, scale, source.optional(f"{layer}.bias"), zero_point=zero_point, input_order=order
        )


def input_order(groups_of: Any, groups: int, layer: str, where: str) -> Any:
    """Inputs sorted by group, from each one's group; None where they are sorted already. Groups must be full."""
    size = len(groups_of) // groups
    if not np.array_equal(np.sort(groups_of), np.arange(len(groups_of)) // size):
        raise CheckpointError(
            f"has groups of different sizes in `{layer}.g_idx`; only {groups} groups of equal size can be compiled",
            where=where,
            fix="Name a checkpoint whose groups are full, or the original one.",
            rule="checkpoint.quantization",
        )
    order = np.argsort(groups_of, kind="stable").astype(np.int64)
    return None if np.array_equal(order, np.arange(len(order))) else order
