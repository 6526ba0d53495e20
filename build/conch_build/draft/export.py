"""A draft as a Hugging Face directory in 8 bits: ModelOpt's unified layout of `int8` (see `quantized`).

Each linear layer is int8 `[out, in]` with a scale a row, the head too: `lm_head.weight` `[V', hidden]`, and, as
EAGLE-3's checkpoints name it, `d2t` i64 `[V']`: row r of the head stands for the target's token r + d2t[r]. The
embedding keeps the target's dtype. Tokenizer and templates are the target's own.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from conch_build.families import linear_layers
from conch_build.model_info import ModelInfo
from conch_build.weights import SINGLE

HEAD = "lm_head"
D2T = "d2t"
_COPIED = (".json", ".jinja", ".txt", ".model")
_OWN = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [out, in] and the scale of each row, f32 [out]: amax / 127."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale[:, None]).round().clamp(-128, 127).to(torch.int8), scale


def export(model: Any, kept: torch.Tensor, source: Path, info: ModelInfo, out: Path) -> None:
    """Write `model`, a draft of the target in `source`, into the folder `out`; `info` is the target's.

    The weights of `model` become those that are written, so that it can be judged as it will run.
    """
    layers = linear_layers(replace(info, num_layers=model.config.num_hidden_layers))
    dtype = getattr(torch, info.dtype)
    weights = dict(model.named_parameters())
    tensors: dict[str, torch.Tensor] = {D2T: kept - torch.arange(len(kept))}
    with torch.no_grad():
        for layer in [*layers, HEAD]:
            weight = weights.pop(f"{layer}.weight")
            values, scale = quantized(weight)
            weight.copy_(values * scale[:, None])
            tensors |= {f"{layer}.weight": values, f"{layer}.weight_scale": scale}
        for name, weight in weights.items():
            tensors[name] = weight.detach().to(dtype)
            weight.copy_(tensors[name])
    save_file(tensors, out / SINGLE, metadata={"format": "pt"})
    for path in source.iterdir():
        if path.is_file() and path.suffix in _COPIED and path.name not in _OWN:
            shutil.copyfile(path, out / path.name)
    _write_configs(model.config, info.dtype, len(kept), out)


def _write_configs(config: Any, dtype: str, rows: int, out: Path) -> None:
    algorithm, producer = "W8A16", {"name": "conch", "version": version("conch")}
    ignored = ["model.embed_tokens"]
    data = config.to_dict() | {
        "dtype": dtype,
        "architectures": config.architectures,
        "draft_vocab_size": rows,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "producer": producer,
            "ignore": ignored,
        },
    }
    _write(out / "config.json", data)
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ignored}
    _write(out / "hf_quant_config.json", {"producer": producer, "quantization": quantization})


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
