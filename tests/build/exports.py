"""How tests quantize a checkpoint, and what a quantized one stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conch_build.inspection import inspect
from conch_build.model_info import ModelInfo
from conch_build.plan import Calibration, Quantization

FORMATS = ("int8", "int8_sq", "int4_awq", "fp8")
FEW = Calibration(samples=8, max_length=64)


def info_of(folder: Path) -> ModelInfo:
    info, problems = inspect(folder)
    assert info is not None, problems
    return info


def settings(format: str, **keys: Any) -> Quantization:
    return Quantization.model_validate({"format": format, "calibration": FEW, **keys})


def read(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def dequantized(tensors: dict[str, Any], layer: str) -> Any:
    """By the rules that the docstring of `quantized` gives."""
    import torch

    weight, scale = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"].float()
    if weight.dtype == torch.uint8:
        low, high = (weight & 15).to(torch.int8), (weight >> 4).to(torch.int8)
        nibbles = torch.stack([low, high], dim=1).reshape(-1, weight.shape[1])
        nibbles = (nibbles ^ 8) - 8
        return nibbles.float() * scale.repeat_interleave(weight.shape[1] // scale.shape[1], dim=1)
    return weight.float() * (scale if scale.dim() == 0 else scale[:, None])
