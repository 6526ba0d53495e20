"""How many bytes a matrix takes in each weight format of TensorRT-LLM, its scales included. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Storage:
    """Bits of one weight, and bytes of what is stored beside them."""

    bits: int = 16
    group: int = 0
    """Weights of a row that share a scale; 0: none do."""
    per_group: float = 0
    per_row: int = 0
    per_column: int = 0
    per_matrix: int = 0

    def bytes_of(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of `rows` outputs and `columns` inputs."""
        weights = -(-rows * columns * self.bits // 8)
        groups = rows * -(-columns // self.group) if self.group else 0
        scales = groups * self.per_group + rows * self.per_row + columns * self.per_column + self.per_matrix
        return weights + round(scales)


STORAGE: dict[str, Storage] = {
    "none": Storage(),
    "int8": Storage(8, per_row=2),
    "int8_sq": Storage(8, per_row=4, per_column=4),
    "int4_awq": Storage(4, group=128, per_group=2, per_column=2),
    "w4a8_awq": Storage(4, group=128, per_group=2, per_column=2, per_matrix=8),
    "fp8": Storage(8, per_matrix=8),
    "nvfp4": Storage(4, group=16, per_group=1, per_matrix=8),
    "fp8_blocks": Storage(8, group=128, per_group=4 / 128),
    "mxfp4": Storage(4, group=32, per_group=1),
    "int4_gptq": Storage(4, group=128, per_group=2),
}
"""A plan's formats, and those that checkpoints come in.

Scales as TensorRT-LLM loads them: weight-only int8 has a 16-bit one a row, SmoothQuant 32-bit ones of weights and of
inputs, AWQ a 16-bit one a group and an input scale a column, fp8 a 32-bit one of weights and of inputs each, nvfp4 an
8-bit one for 16 weights, DeepSeek's fp8 a 32-bit one for 128 x 128 weights.
"""

_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_BLOCK_SCALES": "fp8_blocks",
    "FP8_PB_WO": "fp8_blocks",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
    "W4A16_GPTQ": "int4_gptq",
    "W8A16": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8_sq",
}
"""TensorRT-LLM's names of formats, as ModelOpt writes them."""


def storage_of(form: str, group_size: int | None = None) -> Storage:
    """The storage of a format; `group_size`: another than the format's own."""
    storage = STORAGE[form]
    if group_size is None or not storage.group:
        return storage
    return Storage(storage.bits, group_size, storage.per_group, storage.per_row, storage.per_column, storage.per_matrix)


def stored_format(quantization: Mapping[str, Any]) -> str | None:
    """The key of STORAGE for a checkpoint that comes quantized; None: not known here."""
    algorithm = str(quantization.get("quant_algo") or "").upper()
    if algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    method = str(quantization.get("quant_method") or "").lower()
    if method == "fp8":
        return "fp8_blocks" if quantization.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq") and quantization.get("bits", 4) == 4:
        return "int4_awq" if method == "awq" else "int4_gptq"
    return "mxfp4" if method == "mxfp4" else None
