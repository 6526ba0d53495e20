"""Linear layers as OpenVINO nodes, in the patterns that its CPU plugin turns into compressed kernels.

Weights stay quantized in memory: constant (i4/i8/bf16) -> Convert -> Multiply(scale) -> MatMul becomes one
FullyConnected node that decompresses as it multiplies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset15 as op

from conch_build.compile.openvino.weights import Floats, Linear

Node = Any
"""An OpenVINO node or one of its outputs; the bindings carry no types."""

INT8_LEVELS = 256


def constant(value: Any, dtype: npt.DTypeLike | None = None) -> Node:
    return op.constant(np.asarray(value, dtype))


def weight(layer: Linear) -> Node:
    """The layer's weight, [out, in], as an expression over its stored values."""
    rows, columns = layer.values.shape
    if layer.bits == 32:
        return op.constant(layer.values)
    if layer.bits == 16:
        is_bf16 = layer.values.dtype == np.uint16
        stored = _typed(layer.values, ov.Type.bf16, [rows, columns]) if is_bf16 else op.constant(layer.values)
        return op.convert(stored, "f32")
    assert layer.scale is not None
    if layer.bits == 8:
        return op.multiply(op.convert(op.constant(layer.values), "f32"), _scale(layer.scale.reshape(rows, 1)))
    groups = layer.scale.shape[1]
    nibbles = _typed(_pack_i4(layer.values), ov.Type.i4, [rows, groups, columns // groups])
    grouped = op.multiply(op.convert(nibbles, "f32"), _scale(layer.scale.reshape(rows, groups, 1)))
    return op.reshape(grouped, constant([rows, columns], np.int64), False)


def apply(x: Node, layer: Linear) -> Node:
    """x [tokens, in] -> [tokens, out]: input scaling, int8 activations, matmul and bias as the layer asks."""
    if layer.pre_quant_scale is not None:
        x = op.multiply(x, _scale(layer.pre_quant_scale.reshape(1, -1)))
    if layer.input_scale is not None:
        low, high = constant(-128 * layer.input_scale, np.float32), constant(127 * layer.input_scale, np.float32)
        x = op.fake_quantize(x, low, high, low, high, INT8_LEVELS)
    y = op.matmul(x, weight(layer), False, True)
    if layer.bits == 16 and layer.scale is not None:
        y = op.multiply(y, _scale(layer.scale.reshape(1, -1)))  # on the weight it would make them 32 bits
    return y if layer.bias is None else op.add(y, constant(layer.bias.reshape(1, -1)))


def _scale(values: Floats) -> Node:
    return constant(values, np.float32)


def _typed(values: npt.NDArray[Any], dtype: ov.Type, shape: list[int]) -> Node:
    """A constant whose element type numpy does not have."""
    memory = np.ascontiguousarray(values)  # the tensor does not keep it alive
    return op.constant(ov.Tensor(memory, ov.Shape(shape), dtype), shared_memory=False)


def _pack_i4(values: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """int8 [out, in] in -8..7 -> OpenVINO's packing: two neighbours of a row share a byte, the first one low."""
    nibbles = values.view(np.uint8) & np.uint8(15)
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << np.uint8(4))
