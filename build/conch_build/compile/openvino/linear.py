"""Linear layers as OpenVINO nodes, in the patterns that its CPU plugin turns into compressed kernels.

Weights stay quantized in memory: constant (i4/u4/i8/u8/bf16) -> Convert -> Subtract(zero point) -> Multiply(scale)
-> MatMul becomes one FullyConnected node that decompresses as it multiplies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset15 as op

from conch_build.compile.openvino.stored import Activations, Floats, Linear

Node = Any
"""An OpenVINO node or one of its outputs; the bindings carry no types."""

INT8_LEVELS = 256
E4M3_MAX = 448.0


def constant(value: Any, dtype: npt.DTypeLike | None = None) -> Node:
    return op.constant(np.asarray(value, dtype))


def half_constant(values: npt.NDArray[Any]) -> Node:
    """A constant of f16, or of bf16 whose bits come as uint16."""
    return _typed(values, ov.Type.bf16, list(values.shape)) if values.dtype == np.uint16 else op.constant(values)


def weight(layer: Linear) -> Node:
    """The layer's weight, [out, in], as an expression over its stored values."""
    rows, columns = layer.values.shape
    if layer.bits == 32:
        return op.constant(layer.values)
    if layer.bits == 16:
        return op.convert(half_constant(layer.values), "f32")
    assert layer.scale is not None
    groups = layer.scale.size // rows
    shape = [rows, columns] if groups == 1 else [rows, groups, columns // groups]
    scale_shape = [rows, 1] if groups == 1 else [rows, groups, 1]
    x = op.convert(_packed(layer.values, layer.bits, shape), "f32")
    if layer.zero_point is not None:
        x = op.subtract(x, op.convert(_packed(layer.zero_point, layer.bits, scale_shape), "f32"))
    x = op.multiply(x, _scale(layer.scale.reshape(scale_shape)))
    return x if groups == 1 else op.reshape(x, constant([rows, columns], np.int64), False)


def apply(x: Node, layer: Linear, name: str) -> Node:
    """x [tokens, in] -> [tokens, out]: input scaling, int8 activations, matmul and bias as the layer asks.

    The MatMul bears the friendly name `name`, so that it can be found again in the stored graph; the other
    nodes of the layer bear names under it (`name/...`).
    """
    if layer.input_order is not None:
        x = op.gather(x, constant(layer.input_order), constant(1, np.int64))
        x.set_friendly_name(f"{name}/input_order")
    if layer.pre_quant_scale is not None:
        x = op.multiply(x, _scale(layer.pre_quant_scale.reshape(1, -1)))
        x.set_friendly_name(f"{name}/pre_quant_scale")
    if layer.activations is not None:
        x = _rounded(x, layer.activations, f"{name}/input")
    y = op.matmul(x, weight(layer), False, True)
    y.set_friendly_name(name)
    if layer.bits == 16 and layer.scale is not None:
        y = op.multiply(y, _scale(layer.scale.reshape(1, -1)))  # on the weight it would make them 32 bits
        y.set_friendly_name(f"{name}/scale")
    if layer.bias is not None:
        y = op.add(y, constant(layer.bias.reshape(1, -1)))
        y.set_friendly_name(f"{name}/bias")
    return y


def _rounded(x: Node, how: Activations, name: str) -> Node:
    """x as the format's kernels would see it; the nodes are called `name...`."""
    if how.kind == "int8":
        assert how.scale is not None
        low, high = (constant((end - how.zero_point) * how.scale, np.float32) for end in (-128, 127))
        x = op.fake_quantize(x, low, high, low, high, INT8_LEVELS)
    elif how.scale is not None:
        x = op.fake_convert(x, constant(1 / how.scale, np.float32))
    else:
        largest = op.reduce_max(op.abs(x), constant([-1], np.int64), True)
        step = op.maximum(op.divide(largest, constant(E4M3_MAX, np.float32)), constant(1e-12, np.float32))
        x = op.divide(x, step)
        x.set_friendly_name(f"{name}/by_token")
        x = op.fake_convert(x, constant(1, np.float32))
        x.set_friendly_name(f"{name}/fp8")
        x = op.multiply(x, step)
    x.set_friendly_name(f"{name}_scale")
    return x


def _scale(values: Floats) -> Node:
    return constant(values, np.float32)


def _typed(values: npt.NDArray[Any], dtype: ov.Type, shape: list[int]) -> Node:
    """A constant whose element type numpy does not have."""
    memory = np.ascontiguousarray(values)  # the tensor does not keep it alive
    return op.constant(ov.Tensor(memory, ov.Shape(shape), dtype), shared_memory=False)


def _packed(values: npt.NDArray[Any], bits: int, shape: list[int]) -> Node:
    """Integers of 8 or 4 bits, signed or not as `values` are. Two neighbours of 4 bits share a byte, the first low."""
    if bits == 8:
        return op.constant(values.reshape(shape))
    nibbles = np.resize(values.view(np.uint8) & np.uint8(15), values.size + values.size % 2)
    dtype = ov.Type.i4 if values.dtype == np.int8 else ov.Type.u4
    return _typed(nibbles[0::2] | (nibbles[1::2] << np.uint8(4)), dtype, shape)
