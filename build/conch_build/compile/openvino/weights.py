"""The tensors of a checkpoint directory: linear layers in whichever layout they are stored, all others as floats.

Knows nothing of OpenVINO. A dense layer is X.weight bf16/f16/f32 [out, in]; `layouts` reads packed ones. Either has
an optional X.bias [out].
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch_build.compile.openvino.layouts import layout_of
from conch_build.compile.openvino.stored import Floats, Linear
from conch_build.errors import CheckpointError
from conch_build.files import read_json
from conch_build.model_info import stored_quantization
from conch_build.quantized import QUANTIZED_HEAD
from conch_build.weights import read_weights

if TYPE_CHECKING:
    import torch

__all__ = ["Floats", "Linear", "Weights", "read_config"]


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
        quantization = stored_quantization(directory, read_config(directory))
        self.layout = layout_of(quantization, directory) if quantization else None
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
        """The linear layer called `name`, packed or dense."""
        import torch

        if self.layout is not None and self.layout.packs(name, self):
            return self.layout.read(name, self)
        weight, bias = self.tensor(f"{name}.weight"), self.optional(f"{name}.bias")
        if weight.dtype == torch.bfloat16:
            return Linear(weight.view(torch.uint16).numpy(), 16, bias=bias)
        if weight.dtype in (torch.float16, torch.float32):
            return Linear(weight.numpy(), weight.element_size() * 8, bias=bias)
        raise CheckpointError(
            f"tensor `{name}.weight` is {weight.dtype}, a layout this backend does not read", where=str(self.directory)
        )

    def head(self, *, tied: bool) -> Linear:
        """The output head: the 8-bit one of QUANTIZED_HEAD, or the embedding where the two are tied, or its own."""
        return self.linear("model.embed_tokens" if tied and not self.quantized_head else "lm_head")


def read_config(directory: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`."""
    return read_json(directory / "config.json")
