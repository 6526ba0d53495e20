"""A mixture of experts, in the pattern that OpenVINO's CPU plugin turns into kernels which read chosen experts only.

Written as if every expert saw every token, and the others' answers weighed nothing. The plugin's GatherMatmul takes
its place: it computes row by row, so a token's result does not depend on its company. Gate, up and down are one
MatMul each for all experts of a layer: `<module>.experts.<gate>` and so on; the router's is `<module>.gate`.
"""

from __future__ import annotations

import numpy as np
import openvino.opset15 as op

from conch_build.compile.openvino.family import Experts
from conch_build.compile.openvino.linear import Node, apply, constant, half_constant
from conch_build.compile.openvino.stored import Linear
from conch_build.compile.openvino.weights import Weights
from conch_build.errors import CheckpointError


def mixture(weights: Weights, module: str, x: Node, experts: Experts) -> Node:
    """x [tokens, hidden] -> [tokens, hidden]."""

    def matmul(x: Node, part: str) -> Node:
        layers = [weights.linear(f"{module}.experts.{index}.{part}") for index in range(experts.count)]
        name = f"{module}.experts.{part}"
        node = op.matmul(x, _stacked(layers, name), False, True)
        node.set_friendly_name(name)
        return node

    router = weights.linear(f"{module}.gate")
    hidden = router.values.shape[1]
    shares = _shares(apply(x, router, f"{module}.gate"), experts)
    every = op.reshape(
        op.tile(x, constant([experts.count, 1], np.int64)), constant([experts.count, -1, hidden], np.int64), False
    )
    gate = matmul(every, experts.gate)
    active = op.multiply(gate, op.sigmoid(gate))  # `op.swish` has a second input, which the pattern has not
    inner = op.multiply(active, matmul(every, experts.up))
    answers = op.reshape(matmul(inner, experts.down), constant([experts.count, 1, -1, hidden], np.int64), False)
    total = op.reduce_sum(op.multiply(answers, shares), constant([0], np.int64), False)
    return op.reshape(total, constant([-1, hidden], np.int64), False)


def _shares(scores: Node, experts: Experts) -> Node:
    """Router scores [tokens, experts] -> each expert's weight [experts, 1, tokens, 1], zero for those not chosen."""
    best = op.topk(op.softmax(scores, -1), constant(experts.per_token, np.int64), -1, "max", "value", "i32")
    chosen = best.output(0)
    if experts.normalized:
        chosen = op.divide(chosen, op.reduce_sum(chosen, constant([-1], np.int64), True))
    nothing = op.broadcast(constant(0, np.float32), op.shape_of(scores))
    spread = op.scatter_elements_update(nothing, best.output(1), chosen, constant(1, np.int64))
    turned = op.transpose(spread, constant([1, 0], np.int64))
    return op.unsqueeze(op.reshape(turned, constant([experts.count, 1, -1], np.int64), False), constant([-1], np.int64))


def _stacked(layers: list[Linear], name: str) -> Node:
    """[experts, out, in]. Raises CheckpointError for layouts that GatherMatmul does not take."""
    values = np.stack([layer.values for layer in layers])
    scales = [layer.scale for layer in layers if layer.scale is not None]
    by_output = all(scale.size == values.shape[1] for scale in scales)
    bits = layers[0].bits if all(_is_plain(layer) for layer in layers) else None
    if bits == 32:
        return op.constant(values)
    if bits == 16 and not scales:
        return op.convert(half_constant(values), "f32")
    if bits == 8 and by_output:
        scale = np.stack([scale.reshape(-1, 1) for scale in scales])
        return op.multiply(op.convert(op.constant(values), "f32"), constant(scale, np.float32))
    raise CheckpointError(
        "experts quantized other than to 8 bits by output channel cannot be compiled",
        where=name,
        fix="Use a checkpoint with int8 or unquantized experts.",
    )


def _is_plain(layer: Linear) -> bool:
    """Whether nothing but a scale stands between the values and the layer."""
    beside = (layer.bias, layer.pre_quant_scale, layer.activations, layer.zero_point, layer.input_order)
    return all(part is None for part in beside)
