"""One group of a compressed-tensors `config_groups`: which layers, how they are stored, what their inputs become.

Reads the config alone; `compressed_tensors` reads the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conch_build.compile.openvino.layouts.base import refuse, size_of_group

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_READ = "Weights are read as int4, int8 (by tensor, channel or group) or fp8 (by tensor or channel)."
_INPUTS = "Inputs may be int8 or fp8 as the weights are: static by tensor, or dynamic by token."


@dataclass(frozen=True)
class Scheme:
    """How the layers of one group are stored."""

    targets: list[str]
    packed: bool
    """In words of int32."""
    bits: int
    fp8: bool
    strategy: str
    """What shares a scale: `tensor`, `channel` (an output) or `group` (of an output's weights)."""
    group_size: int
    """-1: a whole row."""
    symmetric: bool
    shuffled: bool
    """The groups are not neighbours (`actorder: group`)."""
    input: Literal["float", "static", "dynamic"]
    symmetric_input: bool

    @property
    def computes_in_f32(self) -> bool:
        """See `Layout`."""
        return self.input != "float" if self.fp8 else self.input != "static"


def scheme_of(name: str, group: Mapping[str, Any], format: Any, where: str) -> Scheme:
    """Read `config_groups.<name>`; `format` is the whole checkpoint's. Raises CheckpointError."""
    key = f"config_groups.{name}"
    format = group.get("format") or format
    if format not in _FORMATS:
        refuse("format", format, where, f"Formats read: {', '.join(_FORMATS)}.")
    if group.get("output_activations"):
        refuse(f"{key}.output_activations", "set", where, "Outputs stay in floating point.")
    weights: Mapping[str, Any] = group.get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    packed = format == "pack-quantized"
    allowed = ((4, "int"), (8, "int")) if packed else ((8, "int"), (8, "float"))
    if (bits, kind) not in allowed:
        refuse(f"{key}.weights", f"{bits} bits of {kind} as {format}", where, _READ)
    strategy = weights.get("strategy") or _implied(weights)
    if strategy not in (("tensor", "channel") if kind == "float" else ("tensor", "channel", "group")):
        refuse(f"{key}.weights.strategy", strategy, where, _READ)
    symmetric = bool(weights.get("symmetric", True))
    if kind == "float" and not symmetric:
        refuse(f"{key}.weights.symmetric", symmetric, where, "fp8 weights have no zero point.")
    return Scheme(
        targets=list(group.get("targets") or ()),
        packed=packed,
        bits=int(bits or 0),
        fp8=kind == "float",
        strategy=strategy,
        group_size=size_of_group(weights, "group_size", where) if strategy == "group" else -1,
        symmetric=symmetric,
        shuffled=weights.get("actorder") in ("group", "dynamic", True),
        input=_input(key, group.get("input_activations"), kind, where),
        symmetric_input=bool((group.get("input_activations") or {}).get("symmetric", True)),
    )


def _implied(weights: Mapping[str, Any]) -> str:
    """The strategy that a group size stands for, where none is named."""
    size = weights.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _input(key: str, inputs: Mapping[str, Any] | None, kind: str, where: str) -> Literal["float", "static", "dynamic"]:
    if not inputs:
        return "float"
    dynamic = inputs.get("dynamic", False)
    strategy = inputs.get("strategy") or "tensor"
    said = f"{inputs.get('num_bits')} bits of {inputs.get('type', 'int')} by {strategy}, dynamic: {dynamic}"
    right_kind = (inputs.get("num_bits"), inputs.get("type", "int")) == (8, kind)
    symmetric = bool(inputs.get("symmetric", True))
    if not right_kind or strategy != ("token" if dynamic is True else "tensor") or (kind == "float" and not symmetric):
        refuse(f"{key}.input_activations", said, where, _INPUTS)
    return "dynamic" if dynamic else "static"
