"""The tensors of a checkpoint directory, full precision or as ModelOpt stored them.

Knows nothing of OpenVINO. Layouts read (`out` x `in` is the linear layer's shape):

    dense   X.weight bf16/f16/f32 [out, in]
    int8    X.weight int8 [out, in],     X.weight_scale f32 [out]
    int4    X.weight uint8 [out/2, in],  X.weight_scale f32 [out, in/group]; low nibble: even row, high: odd row
    fp8     X.weight float8_e4m3fn,      X.weight_scale f32 []; no CPU kernel takes it, bf16 holds it exactly

beside them X.bias [out], X.pre_quant_scale [in] (multiplies the input) and X.input_scale [] (of int8 activations).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from conch_build.errors import CheckpointError
from conch_build.files import read_json
from conch_build.quantized import QUANTIZED_HEAD
from conch_build.weights import read_weights

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """One linear layer as stored: `values` with `scale`, so that weight = values * scale."""

    values: npt.NDArray[Any]
    """[out, in]: float32, float16, bf16 bits as uint16, int8, or int8 holding -8..7 when `bits` is 4."""
    bits: int
    """32, 16, 8 or 4."""
    scale: Floats | None = None
    """[out] or [out, groups] of 8 or 4 bits, [1] of fp8; None for dense weights."""
    bias: Floats | None = None
    pre_quant_scale: Floats | None = None
    input_scale: float | None = None
    """Step of the static int8 activations; None when activations stay in floating point."""


class Weights:
    """Reads tensors by name from the shards of a checkpoint. Raises CheckpointError for one that is not there."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        self.directory = directory
        self._files: dict[str, Any] = {}
        problems: list[CheckpointError] = []
        found = read_weights(directory, problems)  # by the index: other files may lie beside the shards
        if found is None:
            raise problems[0]
        head = directory / QUANTIZED_HEAD
        self.quantized_head = head.exists()
        for shard in (*found.files, head) if self.quantized_head else found.files:
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
            bits = weight.bfloat16().view(torch.uint16).numpy()
            return Linear(bits, 16, scale.reshape(-1), bias, pre_quant_scale)
        if weight.dtype == torch.bfloat16:
            return Linear(weight.view(torch.uint16).numpy(), 16, None, bias, pre_quant_scale)
        if weight.dtype in (torch.float16, torch.float32):
            return Linear(weight.numpy(), weight.element_size() * 8, None, bias, pre_quant_scale)
        raise CheckpointError(
            f"tensor `{name}.weight` is {weight.dtype}, a layout this backend does not read", where=str(self.directory)
        )

    def head(self, *, tied: bool) -> Linear:
        """The output head: the 8-bit one of QUANTIZED_HEAD, or the embedding where the two are tied, or its own."""
        return self.linear("model.embed_tokens" if tied and not self.quantized_head else "lm_head")


def unpack_int4(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """uint8 [out/2, in] -> int8 [out, in] with values -8..7."""
    signed = np.empty((packed.shape[0] * 2, packed.shape[1]), np.int8)
    signed[0::2] = ((packed & 15) ^ 8).astype(np.int8) - 8
    signed[1::2] = ((packed >> 4) ^ 8).astype(np.int8) - 8
    return signed


def read_config(directory: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`; `rope_parameters`, as transformers 5 writes them, under the older names."""
    config = read_json(directory / "config.json")
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        config.setdefault("rope_theta", rope["rope_theta"])
    if rope.get("rope_type", "default") != "default":
        config.setdefault("rope_scaling", rope)
    return config
