"""What every layout answers, and how it refuses. Knows none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from conch_build.compile.openvino.stored import Floats, Linear
from conch_build.errors import CheckpointError
from conch_build.weights import Tensor

if TYPE_CHECKING:
    import torch

DENSE = ("BF16", "F16", "F32")
"""Safetensors dtypes of what is not quantized, and of scales."""


@dataclass(frozen=True)
class Wanted:
    """A tensor that must be there, in one of these dtypes (by safetensors' names) and one of these shapes."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Source(Protocol):
    """Where the tensors of a layer come from."""

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> torch.Tensor: ...

    def floats(self, name: str) -> Floats: ...

    def optional(self, name: str) -> Floats | None: ...


class Layout(Protocol):
    """How a kind of checkpoint stores its packed layers. `layer` is a module's name."""

    computes_in_f32: bool
    """Whether f32 is the better arithmetic: integer kernels round inputs to int8 in any, and fp8 inputs would be
    rounded twice in bf16."""

    def wanted(self, layer: str, shape: tuple[int, int], stored: Mapping[str, Tensor]) -> dict[str, Wanted] | None:
        """The tensors of a layer of `shape` [out, in]; None where it is not packed."""

    def packs(self, layer: str, source: Source) -> bool:
        """Whether the layer is packed."""

    def read(self, layer: str, source: Source) -> Linear:
        """The packed layer as it is stored. Raises CheckpointError for what its headers cannot show."""


def refuse(key: str, value: Any, where: str, supported: str) -> NoReturn:
    """Raise the error for a value of `quantization_config` that this version cannot compile."""
    raise CheckpointError(
        f"has `quantization_config.{key}: {_short(value)}`, which cannot be compiled",
        where=where,
        fix=f"{supported} Or name the original checkpoint and let `quantization.format` quantize it.",
        rule="checkpoint.quantization",
    )


def group_count(columns: int, group_size: int, layer: str, where: str) -> int:
    """Groups in a row; a `group_size` of -1 is the whole row. Raises CheckpointError for one that is part full."""
    size = columns if group_size == -1 else group_size
    if columns % size:
        raise CheckpointError(
            f"has `quantization_config.group_size: {group_size}`, which does not divide `{layer}`'s width of {columns}",
            where=where,
            fix="Use the config.json that belongs to these weights.",
            rule="checkpoint.quantization",
        )
    return columns // size


def size_of_group(config: Mapping[str, Any], key: str, where: str) -> int:
    """The group size in a config: a whole number above 0, or -1."""
    size = config.get(key)
    if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
        refuse(key, size, where, "It must be a whole number above 0, or -1 for whole rows.")
    return size


def _short(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
