"""What a quantized checkpoint looks like, and whether one is whole. Quantizes nothing.

It is ModelOpt's unified Hugging Face checkpoint: the checkpoint's own names, `hf_quant_config.json`, config,
tokenizer. W is `[out, in]`, X a linear layer (`model.layers.0.mlp.up_proj`):

    format    X.weight                 X.weight_scale        X.pre_quant_scale           X.input_scale
    none      the checkpoint's files, hard-linked; no hf_quant_config.json
    int8      int8 [out, in]           f32 [out]
    int8_sq   int8 [out, in]           f32 [out]             [in], every layer           f32 []
    int4_awq  uint8 [out/2, in]        f32 [out, in/group]   [in], o_proj and down_proj
    fp8       float8_e4m3fn [out, in]  f32 []                                            f32 []

    dequantized = weight * weight_scale        (int4: nibble * weight_scale[o, i // group])
    y = (x * pre_quant_scale) @ dequantized.T + bias

int4 packs two neighbouring output rows into a byte: row 2r in the low nibble, 2r+1 in the high one; signed,
without zero point. `input_scale` is amax/127 (int8) or amax/448 (fp8) of `x * pre_quant_scale`. q, k and v
share one `input_scale` and one `pre_quant_scale`, gate and up too. For int4_awq that `pre_quant_scale` is
folded into the norm before them, whose exported weight has changed. Norms, biases, embedding and lm_head keep
the checkpoint's dtype, and `pre_quant_scale` has it; a tied lm_head is left out.

`int8` and `int4_awq` add an 8-bit lm_head (a third of all weights in a small model) in QUANTIZED_HEAD:
`lm_head.weight` int8 [vocab, hidden] and `lm_head.weight_scale` f32 [vocab]. It lies in a folder of its own:
TensorRT-LLM and transformers read the top folder only, know no 8-bit lm_head, and find the checkpoint they expect.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conch_build.errors import BuildError
from conch_build.families import linear_layers
from conch_build.files import read_json
from conch_build.model_info import ModelInfo
from conch_build.weights import read_weights

QUANTIZED_HEAD = "extra/lm_head.safetensors"

_STORED = {"int8": "I8", "int8_sq": "I8", "int4_awq": "U8", "fp8": "F8_E4M3"}
"""Safetensors dtype of packed weights."""


def check_export(folder: Path, format: str, info: ModelInfo) -> None:
    """Raises BuildError unless every linear layer is there, packed and with its scale."""
    weights = read_weights(folder, [])
    tensors = weights.tensors if weights else {}

    def packed(layer: str) -> bool:
        weight = tensors.get(f"{layer}.weight")
        return weight is not None and weight.dtype == _STORED[format] and f"{layer}.weight_scale" in tensors

    wrong = [layer for layer in linear_layers(info) if not packed(layer)]
    if wrong or not (folder / "hf_quant_config.json").is_file():
        missing = f"{len(wrong)} layers are not packed, {wrong[0]} first" if wrong else "no hf_quant_config.json"
        raise BuildError(
            f"ModelOpt's {format} export is not whole: {missing}",
            where=folder.name,
            fix="Build with --verbose and look for ModelOpt's own message.",
        )


def producer(folder: Path) -> str | None:
    """Who quantized the checkpoint in `folder`, as `modelopt 0.47.0`; None when nobody has."""
    said = (_quant_config(folder) or {}).get("producer") or {}
    return " ".join(str(said[key]) for key in ("name", "version") if key in said) or None


def stored_group_size(folder: Path) -> int | None:
    """Weights that share a scale in the quantized checkpoint; None when a whole row or tensor does."""
    config = _quant_config(folder) or read_json(folder / "config.json")
    said = config.get("quantization") or config.get("quantization_config") or {}
    size = said.get("group_size")
    return size if isinstance(size, int) and size > 0 else None


def _quant_config(folder: Path) -> dict[str, Any] | None:
    path = folder / "hf_quant_config.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
