"""Paged attention whose scores are capped, s -> cap * tanh(s / cap), as Gemma 2 wants it and OpenVINO's cannot.

A node written in numpy, in the paged attention node's place: it writes keys and values of the step into the caches
and then attends to them. Exact, on one thread: slower than OpenVINO's own for long sequences.

Each row of a cache holds one token's key (or value) of one head: f32, the upper halves of f32 (bf16), or u8 codes
behind an f32 step and an f32 smallest value.

Queries are computed in tiles of a block, aligned in the sequence, so that a prompt's results are the same bits
whether it comes whole or in pieces of whole blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from conch_build.manifest import EngineManifest
from conch_build.sizing import kv_row_bytes

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class SoftcappedAttention(ov.Op):  # type: ignore[misc]
    """Inputs: query, key, value [tokens, heads * head_dim], the two caches, and the tables of the step's sequences."""

    def __init__(self, inputs: list[Any], manifest: EngineManifest, window: int) -> None:
        super().__init__(self)
        self.manifest, self.window = manifest, window
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def get_type_info(self) -> ov.DiscreteTypeInfo:
        return ov.DiscreteTypeInfo("SoftcappedAttention", "conch")

    def clone_with_new_inputs(self, inputs: list[Any]) -> SoftcappedAttention:
        return SoftcappedAttention(inputs, self.manifest, self.window)

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, ov.Type.f32, self.get_input_partial_shape(0))

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Any, inputs: Any) -> bool:
        query, key, value, key_cache, value_cache, past, begins, blocks, block_begins = (each.data for each in inputs)
        outputs[0].shape = query.shape
        answer = outputs[0].data
        sequences = [
            (past[index], slice(*begins[index : index + 2]), blocks[slice(*block_begins[index : index + 2])])
            for index in range(len(past))
        ]
        for start, rows, table in sequences:  # all, before any is read: sequences of one step may share blocks
            self._write(key_cache, key[rows], start, table)
            self._write(value_cache, value[rows], start, table)
        for start, rows, table in sequences:
            answer[rows] = self._attend(query[rows], key_cache, value_cache, start, table)
        return True

    def _write(self, cache: Bytes, new: Floats, start: int, table: npt.NDArray[np.int32]) -> None:
        positions = start + np.arange(len(new))
        size = cache.shape[2]
        rows = new.reshape(len(new), cache.shape[1], self.manifest.head_dim)
        cache[table[positions // size], :, positions % size] = pack(rows, self.manifest.kv_cache.dtype)

    def _read(self, cache: Bytes, table: npt.NDArray[np.int32], tokens: int) -> Floats:
        """[kv_heads, tokens in the blocks, head_dim]; what lies behind `tokens` is zero."""
        packed = cache[table].swapaxes(0, 1)
        rows = unpack(np.ascontiguousarray(packed), self.manifest.kv_cache.dtype)
        found = rows.reshape(len(rows), -1, self.manifest.head_dim)
        found[:, tokens:] = 0
        return found

    def _attend(
        self, query: Floats, key_cache: Bytes, value_cache: Bytes, start: int, table: npt.NDArray[np.int32]
    ) -> Floats:
        """query [tokens, heads * head_dim] of positions `start`.. -> the same shape."""
        size, end = key_cache.shape[2], start + len(query)
        first = max(0, start - self.window + 1) // size if self.window else 0
        used = table[first : -(-end // size)]
        keys, values = (self._read(cache, used, end - first * size) for cache in (key_cache, value_cache))
        head_dim, cap = self.manifest.head_dim, np.float32(self.manifest.attention_softcap)
        scale = np.float32(self.manifest.query_scale)
        heads = query.reshape(len(query), len(keys), -1, head_dim).transpose(1, 2, 0, 3)
        answer = np.empty((len(query), *heads.shape[:2], head_dim), np.float32)
        for tile in range(start - start % size, end, size):
            # Positions whose queries are computed, and positions whose keys some of them may see.
            asking = np.arange(max(tile, start), min(tile + size, end))
            lowest = max(first, (tile - self.window + 1) // size) if self.window else 0
            asked = np.arange(lowest * size, tile + size)
            rows, columns = asking - start, slice(asked[0] - first * size, asked[-1] + 1 - first * size)
            scores = heads[:, :, rows].reshape(len(keys), -1, head_dim) @ keys[:, columns].swapaxes(1, 2)
            scores = np.tanh(scores * scale / cap) * cap
            by_head = scores.reshape(*heads.shape[:2], len(asking), len(asked))
            by_head[:, :, ~self._visible(asking[:, None] - asked)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            mixed = (weights @ values[:, columns]).reshape(*heads.shape[:2], len(asking), head_dim)
            answer[rows] = mixed.transpose(2, 0, 1, 3)
        return answer.reshape(len(query), -1)

    def _visible(self, distance: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether a query sees the key that lies `distance` tokens before it."""
        return (distance >= 0) & (distance < self.window) if self.window else distance >= 0


def cache_shape(manifest: EngineManifest) -> list[int]:
    """Shape of a cache of bytes: [blocks, kv_heads, tokens a block, bytes a row]."""
    row = kv_row_bytes(manifest.head_dim, manifest.kv_cache.dtype)
    return [-1, manifest.num_kv_heads, manifest.kv_cache.tokens_per_block, row]


def pack(rows: Floats, dtype: str) -> Bytes:
    """[..., head_dim] -> [..., bytes of a row]."""
    if dtype == "f32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if dtype == "bf16":
        bits = np.ascontiguousarray(rows).view(np.uint32)
        nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # ties to even
        return (nearest >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    low, high = rows.min(axis=-1, keepdims=True), rows.max(axis=-1, keepdims=True)
    step = np.maximum((high - low) / np.float32(255), np.finfo(np.float32).tiny)
    codes = np.rint((rows - low) / step).astype(np.uint8)
    return np.concatenate([step.view(np.uint8), low.view(np.uint8), codes], axis=-1)


def unpack(packed: Bytes, dtype: str) -> Floats:
    """[..., bytes of a row] -> [..., head_dim]."""
    if dtype == "f32":
        return packed.view(np.float32)
    if dtype == "bf16":
        return (packed.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    step, low = (np.ascontiguousarray(packed[..., at : at + 4]).view(np.float32) for at in (0, 4))
    return packed[..., 8:] * step + low
