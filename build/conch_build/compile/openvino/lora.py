"""LoRA slots: low-rank additions to linear layers, put into the graph when it is loaded.

Adapters lie behind each other along the rank, and a row of the mask says which of these rows a token uses:
y += ((x A) * mask) B. A token whose mask is all zero gets exactly 0 added. Nothing of this is in the stored graph.

inputs   lora_mask                 f32 [tokens, rank]
         lora_a.NAME, lora_b.NAME  f32 [in, rank], [rank, out]   for each layer NAME that has slots

The same model without slots must round as the one with them, or a token would depend on who else is served. In bf16
it does not where the plugin computes a layer and what follows it (an activation, say) in one go, before it rounds:
`add_nothing` keeps the two apart there, at no cost.

input    lora_nothing              f32 [1, 1]   0
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import openvino as ov
import openvino.opset15 as op

from conch_build.compile.openvino.linear import Node, constant

MASK = "lora_mask"
NOTHING = "lora_nothing"
HEAD = "lm_head"
_PARTS = {"q": 0, "k": 1, "v": 2, "gate": 0, "up": 1}
"""Of `qkv_proj` and `gate_up_proj`, with their places among its outputs."""
_NO_ARITHMETIC = ("Reshape", "Slice", "Split", "VariadicSplit", "StridedSlice", "Result")


def linear_layers(model: ov.Model) -> dict[str, tuple[int, int]]:
    """Name -> (out, in) of every layer that can have slots."""
    return {name: (sum(map(_rows, parts)), _columns(parts[0])) for name, parts in _layers(model).items()}


def add_slots(model: ov.Model, names: Iterable[str]) -> None:
    """Give slots to the layers called `names`. Raises KeyError for one that the graph does not have."""
    layers = _layers(model)
    mask = _parameter(MASK, [-1, -1])
    parameters = [mask]
    for name in names:
        parts = layers[name]
        sizes = [_rows(part) for part in parts]
        a, b = _parameter(f"lora_a.{name}", [_columns(parts[0]), -1]), _parameter(f"lora_b.{name}", [-1, sum(sizes)])
        parameters += [a, b]
        ends = [_ends(part) for part in parts]
        chosen = op.multiply(op.matmul(ends[0][0], a, False, False), _head_rows(model, mask) if name == HEAD else mask)
        delta = op.matmul(chosen, b, False, False)
        split = op.variadic_split(delta, constant(1, np.int64), constant(sizes, np.int64)) if len(parts) > 1 else delta
        for (_, y), share in zip(ends, split.outputs(), strict=True):
            _add(y, share)
    model.add_parameters(parameters)
    model.validate_nodes_and_infer_types()


def add_nothing(model: ov.Model, names: Iterable[str]) -> None:
    """Make the model without slots round, in bf16, as it does with slots for the layers called `names`."""
    layers = _layers(model)
    nothing = _parameter(NOTHING, [1, 1])
    for name in names:
        for y in [_ends(part)[1] for part in layers[name]]:
            if name == HEAD or any(_could_be_fused(consumer.get_node()) for consumer in y.get_target_inputs()):
                _add(y, nothing)
    model.add_parameters([nothing])
    model.validate_nodes_and_infer_types()


def _add(y: Node, delta: Node) -> None:
    """Let all that reads `y` read y + delta."""
    consumers = list(y.get_target_inputs())
    total = op.add(y, delta)
    for consumer in consumers:
        consumer.replace_source_output(total.output(0))


def _could_be_fused(consumer: Node) -> bool:
    """Whether a node is arithmetic on a layer's output alone: constants aside it reads nothing else."""
    inputs = [consumer.input_value(index).get_node().get_type_name() for index in range(consumer.get_input_size())]
    return consumer.get_type_name() not in _NO_ARITHMETIC and len(inputs) - inputs.count("Constant") == 1


def _layers(model: ov.Model) -> dict[str, list[Node]]:
    """The MatMuls of tokens and a weight, by the module's name; several where a fused module was cut into parts.

    Those of a mixture's experts have more dimensions.
    """
    layers: dict[str, list[Node]] = {}
    for node in model.get_ops():
        if node.get_type_name() == "MatMul" and len(node.get_output_partial_shape(0)) == 2:
            name = node.get_friendly_name()
            fused, _, part = name.rpartition("_proj.")
            layers.setdefault(f"{fused}_proj" if part in _PARTS and fused else name, []).append(node)
    for parts in layers.values():
        parts.sort(key=lambda node: _PARTS.get(node.get_friendly_name().rpartition(".")[2], 0))
    return layers


def _rows(node: Node) -> int:
    return int(node.get_output_partial_shape(0)[1].get_length())


def _columns(node: Node) -> int:
    return int(node.input(0).get_partial_shape()[1].get_length())


def _ends(node: Node) -> tuple[Node, Node]:
    """What the whole layer reads and gives: scales and bias lie between them and the MatMul, under its name."""
    own = f"{node.get_friendly_name()}/"
    x, y = node.input_value(0), node.output(0)
    while x.get_node().get_friendly_name().startswith(own):
        x = x.get_node().input_value(0)
    while behind := [i.get_node() for i in y.get_target_inputs() if i.get_node().get_friendly_name().startswith(own)]:
        y = behind[0].output(0)
    return x, y


def _head_rows(model: ov.Model, mask: Node) -> Node:
    """The head computes only the rows that are sampled."""
    rows = next(each for each in model.get_parameters() if each.get_friendly_name() == "sampled_rows")
    return op.gather(mask, rows, constant(0, np.int64))


def _parameter(name: str, shape: list[int]) -> Node:
    node = op.parameter(ov.PartialShape(shape), np.float32, name=name)
    node.output(0).set_names({name})
    return node
