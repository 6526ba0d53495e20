"""How tests pack a tiny checkpoint into the layouts that others write, by each format's definition.

A packer takes a dense weight [out, in] and gives the tensors that stand for it and the weight that they mean.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch_build.families import linear_layers
from tests.build.exports import info_of

Array = NDArray[Any]
Packed = tuple[dict[str, Any], Array]
Packer = Callable[[Array], Packed]

GROUP = 32


def write_arrival(
    source: Path, out: Path, packers: Mapping[str, Packer], config: Mapping[str, Any], *, dense: Iterable[str] = ()
) -> dict[str, Array]:
    """Copy `source` to `out` with its linear layers packed; the weight that each packed layer stands for.

    `packers`: end of a layer's name -> packer ("" fits all). Layers whose name ends with one of `dense` stay.
    """
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, out)
    tensors, meant = load_file(source / "model.safetensors"), {}
    for layer in linear_layers(info_of(source)):
        if not layer.endswith(tuple(dense) or ("?",)):
            packer = next(packer for end, packer in packers.items() if layer.endswith(end))
            parts, meant[layer] = packer(tensors.pop(f"{layer}.weight").numpy())
            tensors.update(
                {f"{layer}.{name}": torch.as_tensor(part).clone().contiguous() for name, part in parts.items()}
            )
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    path = out / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    return meant


def awq(group: int = GROUP) -> Packer:
    def pack(weight: Array) -> Packed:
        values, zeros, scale = quantized(weight, group, 4, symmetric=False)
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def words(table: Array) -> Array:  # [out, n] -> [n, out/8]
            return in_words(np.ascontiguousarray(table.T).reshape(-1, len(table) // 8, 8)[:, :, order], 4)[..., 0]

        parts = {"qweight": words(values), "qzeros": words(zeros), "scales": scale.T.astype(np.float16)}
        return parts, meaning(values, zeros, scale)

    return pack


def gptq(
    bits: int = 4, group: int = GROUP, *, symmetric: bool = True, version: int = 1, shuffled: bool = False
) -> Packer:
    def pack(weight: Array) -> Packed:
        columns = weight.shape[1]
        order = np.random.default_rng(columns).permutation(columns) if shuffled else np.arange(columns)
        values, zeros, scale = quantized(weight[:, order], group, bits, symmetric=symmetric)
        back = np.argsort(order)
        zero_words = in_words(np.ascontiguousarray(zeros.T), bits)
        if version == 1:
            zero_words = (zero_words.view(np.uint32) - np.uint32({4: 0x11111111, 8: 0x01010101}[bits])).view(np.int32)
        parts = {
            "qweight": in_words(values[:, back], bits).T,
            "qzeros": zero_words,
            "scales": scale.T.astype(np.float16),
            "g_idx": (back // (columns if group == -1 else group)).astype(np.int32),
        }
        return parts, meaning(values, zeros, scale)[:, back]

    return pack


def pack_quantized(
    bits: int = 4, group: int = GROUP, *, symmetric: bool = True, zeros_in_words: bool = True, shuffled: bool = False
) -> Packer:
    def pack(weight: Array) -> Packed:
        columns = weight.shape[1]
        order = np.random.default_rng(columns).permutation(columns) if shuffled else np.arange(columns)
        values, zeros, scale = quantized(weight[:, order], group, bits, symmetric=symmetric)
        back = np.argsort(order)
        parts: dict[str, Any] = {
            "weight_packed": in_words(values[:, back], bits),
            "weight_shape": np.array(weight.shape),
            "weight_scale": scale,
        }
        if not symmetric and zeros_in_words:
            parts["weight_zero_point"] = in_words(np.ascontiguousarray(zeros.T), bits).T
        elif not symmetric:
            parts["weight_zero_point"] = (zeros.astype(int) - (1 << (bits - 1))).astype(np.int8)
        if shuffled:
            parts["weight_g_idx"] = (back // group).astype(np.int32)
        return parts, meaning(values, zeros, scale)[:, back]

    return pack


def int_quantized(group: int | None = -1, *, symmetric: bool = True, inputs: Mapping[str, Any] = {}) -> Packer:
    """`group` None: one scale for the whole tensor."""

    def pack(weight: Array) -> Packed:
        table = weight if group is not None else weight.reshape(1, -1)
        values, zeros, scale = quantized(table, -1 if group is None else group, 8, symmetric=symmetric)
        parts: dict[str, Any] = {"weight": (values.astype(int) - 128).astype(np.int8).reshape(weight.shape)}
        parts["weight_scale"] = scale if group is not None else scale.reshape(1)
        if not symmetric:
            parts["weight_zero_point"] = (zeros.astype(int) - 128).astype(np.int8)
        return {**parts, **inputs}, meaning(values, zeros, scale).reshape(weight.shape)

    return pack


def float_quantized(*, channel: bool, inputs: Mapping[str, Any] = {}) -> Packer:
    def pack(weight: Array) -> Packed:
        import torch

        tensor = torch.tensor(weight)
        scale = tensor.abs().amax(1, keepdim=True) / 448 if channel else (tensor.abs().amax() / 448).reshape(1)
        values = (tensor / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale": scale, **inputs}, (values.float() * scale).numpy()

    return pack


def quantized(weight: Array, group: int, bits: int, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """uint8 values [out, in], uint8 zero points and f16-exact f32 scales [out, groups]."""
    top = (1 << bits) - 1
    grouped = weight.reshape(len(weight), -1, weight.shape[1] if group == -1 else group)
    if symmetric:
        scale = abs(grouped).max(2) * 2 / top
        zeros = np.full(scale.shape, 1 << (bits - 1))
    else:
        low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
        scale = (high - low) / top
        zeros = np.clip(np.round(-low / scale), 0, top)
    scale = scale.astype(np.float16).astype(np.float32)
    values = np.clip(np.round(grouped / scale[:, :, None]) + zeros[:, :, None], 0, top)
    return values.astype(np.uint8).reshape(weight.shape), zeros.astype(np.uint8), scale


def meaning(values: Array, zeros: Array, scale: Array) -> Array:
    """(values - zero point) * scale, in f32."""
    grouped = values.reshape(*scale.shape, -1).astype(np.float32) - zeros[:, :, None].astype(np.float32)
    return (grouped * scale[:, :, None]).reshape(values.shape)


def in_words(values: Array, bits: int) -> Array:
    """[..., n] -> int32 [..., n * bits / 32]: the first value in the lowest bits."""
    count = 32 // bits
    shifted = values.reshape(*values.shape[:-1], -1, count).astype(np.uint32) << np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(shifted, -1).view(np.int32)


def scheme(
    format: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """A compressed-tensors `quantization_config` with one group."""
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        **keys,
    }
