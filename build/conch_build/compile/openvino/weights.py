"""The tensors of a checkpoint directory, full precision or as ModelOpt stored them.

Knows nothing of OpenVINO. Layouts read (`out` x `in` is the linear layer's shape):

    dense   X.weight bf16/f16/f32 [out, in]
    int8    X.weight int8 [out, in],     X.weight_scale f32 [out]
    int4    X.weight uint8 [out/2, in],  X.weight_scale f32 [out, in/group]; low nibble: even row, high: odd row
    fp8     X.weight float8_e4m3fn,      X.weight_scale f32 []

beside them X.bias [out], X.pre_quant_scale [in] (multiplies the input) and X.input_scale [] (of int8 activations).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from conch_build.errors import CheckpointError
from conch_build.quantized import QUANTIZED_HEAD

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """One linear layer as stored: `values` with `scale`, so that weight = values * scale."""

    values: npt.NDArray[Any]
    """[out, in]: float32, bf16 bits as uint16, int8, or int8 holding -8..7 when `bits` is 4."""
    bits: int
    """32, 16 (bf16), 8 or 4."""
    scale: Floats | None = None
    """[out] or [out, groups]; None for dense weights."""
    bias: Floats | None = None
    pre_quant_scale: Floats | None = None
    input_scale: float | None = None
    """Step of the static int8 activations; None when activations stay in floating point."""


class Weights:
    """Reads tensors by name from every shard of a directory. Raises CheckpointError for one that is not there."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        self.directory = directory
        self._files: dict[str, Any] = {}
        shards = sorted(directory.glob("*.safetensors"))
        head = directory / QUANTIZED_HEAD
        for shard in [*shards, head] if head.exists() else shards:
            handle: Any = safe_open(shard, framework="pt")  # numpy has no bf16
            self._files.update(dict.fromkeys(handle.keys(), handle))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as stored."""
        try:
            tensor: torch.Tensor = self._files[name].get_tensor(name)
        except KeyError:
            raise CheckpointError(f"tensor `{name}` is missing", where=str(self.directory)) from None
        return tensor

    def floats(self, name: str) -> Floats:
        """The tensor as float32."""
        array: Floats = self.tensor(name).float().numpy()
        return array

    def optional(self, name: str) -> Floats | None:
        return self.floats(name) if name in self else None

    def linear(self, name: str) -> Linear:
        """The linear layer called `name`, in whichever layout it is stored."""
        import torch

        weight = self.tensor(f"{name}.weight")
        scale = self.optional(f"{name}.weight_scale")
        bias = self.optional(f"{name}.bias")
        pre_quant_scale = self.optional(f"{name}.pre_quant_scale")
        if weight.dtype == torch.int8 and scale is not None:
            step = self.optional(f"{name}.input_scale")
            return Linear(
                weight.numpy(), 8, scale.reshape(-1), bias, pre_quant_scale, None if step is None else float(step)
            )
        if weight.dtype == torch.uint8 and scale is not None:
            return Linear(unpack_int4(weight.numpy()), 4, scale, bias, pre_quant_scale)
        if weight.dtype == torch.float8_e4m3fn and scale is not None:
            # No CPU kernel takes fp8: the values it stands for are kept, in bf16.
            weight = (weight.float() * torch.from_numpy(scale.reshape(-1, 1) if scale.size > 1 else scale)).bfloat16()
        if weight.dtype == torch.bfloat16:
            return Linear(weight.view(torch.uint16).numpy(), 16, None, bias, pre_quant_scale)
        if weight.dtype in (torch.float16, torch.float32):
            return Linear(weight.float().numpy(), 32, None, bias, pre_quant_scale)
        raise CheckpointError(
            f"tensor `{name}.weight` is {weight.dtype}, a layout this backend does not read", where=str(self.directory)
        )

    def head(self) -> Linear:
        """The output head: its own weights, or the embedding's where the two are tied."""
        return self.linear("lm_head" if "lm_head.weight" in self else "model.embed_tokens")


def unpack_int4(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """uint8 [out/2, in] -> int8 [out, in] with values -8..7."""
    signed = np.empty((packed.shape[0] * 2, packed.shape[1]), np.int8)
    signed[0::2] = ((packed & 15) ^ 8).astype(np.int8) - 8
    signed[1::2] = ((packed >> 4) ^ 8).astype(np.int8) - 8
    return signed


def read_config(directory: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config
