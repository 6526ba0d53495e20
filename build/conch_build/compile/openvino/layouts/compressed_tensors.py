"""compressed-tensors, llm-compressor's layout: a scheme for each group of layers, in one of three formats.

    pack-quantized   X.weight_packed int32 [out, in*bits/32], 4 or 8 bits, the middle added; lowest bits first
                     X.weight_zero_point int32 [out*bits/32, groups], packed likewise, or int8 [out, groups]
    int-quantized    X.weight int8 [out, in]           X.weight_zero_point int8, shaped as the scale
    float-quantized  X.weight float8_e4m3fn [out, in]  becomes bf16, which holds it exactly

    weight = (value - weight_zero_point) * X.weight_scale, which is [1], [out, 1] or [out, groups]

`naive-quantized` is the second or the third. Static activations bring X.input_scale, and X.input_zero_point if
they are not symmetric. Dynamic ones have a step for each token, its largest value / 448, if they are fp8; int8 ones
are left to the kernels, which round by finer groups. With `actorder: group` X.weight_g_idx sorts the columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from conch_build.compile.openvino.layouts.base import DENSE, Source, Wanted, group_count, refuse
from conch_build.compile.openvino.layouts.compressed_scheme import Scheme, scheme_of
from conch_build.compile.openvino.layouts.gptq import input_order
from conch_build.compile.openvino.stored import Activations, Linear, centred, unpack
from conch_build.weights import Tensor


class CompressedTensors:
    """See the module. Raises CheckpointError for a config that it cannot read."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._where = where
        status = config.get("quantization_status", "compressed")
        if status != "compressed":
            refuse("quantization_status", status, where, "Only `compressed` weights are read.")
        sparsity = (config.get("sparsity_config") or {}).get("format", "dense")
        if sparsity != "dense":
            refuse("sparsity_config.format", sparsity, where, "Sparse weights are not read.")
        if config.get("transform_config"):
            refuse("transform_config", config["transform_config"], where, "Weights must not be rotated.")
        groups = config.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            refuse("config_groups", groups, where, "It must say how the layers are quantized.")
        self._schemes = [scheme_of(name, group, config.get("format"), where) for name, group in groups.items()]
        self.computes_in_f32 = all(scheme.computes_in_f32 for scheme in self._schemes)
        self._ignored = list(config.get("ignore") or ())

    def wanted(self, layer: str, shape: tuple[int, int], stored: Mapping[str, Tensor]) -> dict[str, Wanted] | None:
        scheme = self._scheme(layer)
        if scheme is None:
            return None
        rows, columns = shape
        a_word = 32 // scheme.bits
        groups = group_count(columns, scheme.group_size, layer, self._where)
        of_scale = {
            "tensor": ((), (1,), (1, 1)),
            "channel": ((rows, 1), (rows,)),
            "group": ((rows, groups),),
        }[scheme.strategy]
        wanted = {f"{layer}.weight_scale": Wanted(DENSE, of_scale)}
        if scheme.packed:
            wanted[f"{layer}.weight_packed"] = Wanted(("I32",), ((rows, -(-columns // a_word)),))
        else:
            wanted[f"{layer}.weight"] = Wanted(("F8_E4M3" if scheme.fp8 else "I8",), ((rows, columns),))
        if not scheme.symmetric:
            name = f"{layer}.weight_zero_point"
            in_words = name in stored and stored[name].dtype == "I32"
            words = Wanted(("I32",), ((-(-rows // a_word), groups),))
            wanted[name] = words if scheme.packed and in_words else Wanted(("I8",), of_scale)
        if scheme.shuffled:
            wanted[f"{layer}.weight_g_idx"] = Wanted(("I32", "I64"), ((columns,),))
        if scheme.input == "static":
            wanted[f"{layer}.input_scale"] = Wanted(DENSE, ((), (1,)))
            if not scheme.symmetric_input:
                wanted[f"{layer}.input_zero_point"] = Wanted(("I8",), ((), (1,)))
        return wanted

    def packs(self, layer: str, source: Source) -> bool:
        return self._scheme(layer) is not None and f"{layer}.weight_scale" in source  # an embedding has none

    def read(self, layer: str, source: Source) -> Linear:
        scheme = self._scheme(layer)
        assert scheme is not None
        scale, bias = source.floats(f"{layer}.weight_scale"), source.optional(f"{layer}.bias")
        activations = _activations(scheme, layer, source)
        weight = source.tensor(f"{layer}.weight_packed" if scheme.packed else f"{layer}.weight")
        if scheme.fp8:
            import torch

            values = weight.bfloat16().view(torch.uint16).numpy()
            return Linear(values, 16, scale.reshape(-1), bias, activations=activations)
        raw = unpack(weight.numpy(), scheme.bits) if scheme.packed else _raised(weight.numpy(), 8)
        scale = _by_row(scale, len(raw))
        if scheme.symmetric:
            zeros = np.full(scale.shape, 1 << (scheme.bits - 1), np.uint8)
        else:
            zeros = _by_row(_zero_points(source.tensor(f"{layer}.weight_zero_point").numpy(), scheme.bits), len(raw))
        order = None
        if scheme.shuffled:
            order = input_order(source.tensor(f"{layer}.weight_g_idx").numpy(), scale.shape[1], layer, self._where)
        if order is not None:
            raw = np.ascontiguousarray(raw[:, order])
        values, zero_point = centred(raw, zeros, scheme.bits)
        return Linear(
            values, scheme.bits, scale, bias, activations=activations, zero_point=zero_point, input_order=order
        )

    def _scheme(self, layer: str) -> Scheme | None:
        """The layer's scheme: one that names it goes before one for all linear layers."""
        if _named(layer, self._ignored):
            return None
        fitting = [scheme for scheme in self._schemes if _named(layer, scheme.targets)]
        fitting += [scheme for scheme in self._schemes if "Linear" in scheme.targets]
        return fitting[0] if fitting else None


def _named(layer: str, names: list[str]) -> bool:
    """Whether the layer's name is among `names`, or fits a pattern (`re:...`) of them."""
    return any(re.match(name[3:], layer) if name.startswith("re:") else name == layer for name in names)


def _activations(scheme: Scheme, layer: str, source: Source) -> Activations | None:
    if scheme.input == "static":
        zero = 0 if scheme.symmetric_input else int(source.tensor(f"{layer}.input_zero_point").reshape(()))
        step = float(source.floats(f"{layer}.input_scale").reshape(()))
        return Activations("fp8" if scheme.fp8 else "int8", step, zero)
    return Activations("fp8", None) if scheme.fp8 and scheme.input == "dynamic" else None


def _by_row(table: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """[], [1], [out], [out, 1] or [out, groups] -> [out, groups]"""
    table = table.reshape(-1, table.shape[1] if table.ndim == 2 else 1)
    return np.ascontiguousarray(np.broadcast_to(table, (rows, table.shape[1])))


def _zero_points(stored: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Zero points of values that have the middle added, as the weights have."""
    if stored.dtype == np.int32:
        return unpack(np.ascontiguousarray(stored.T), bits).T
    return _raised(stored, bits)


def _raised(values: npt.NDArray[np.int8], bits: int) -> npt.NDArray[np.uint8]:
    return (values.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
