"""One forward step on OpenVINO: slots in, candidate tokens out. Owns the model and the memory of the KV blocks.

Knows nothing of requests, sampling or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from conch.engine.batch import Rows, Slot
from conch_build.compile.openvino import MODEL_FILE
from conch_build.compile.openvino.attention import load_model
from conch_build.errors import SetupError
from conch_build.machine import has_bf16
from conch_build.manifest import EngineManifest
from conch_build.units import format_bytes


class OpenVINORunner:
    """Runs the engine in `directory` (a `Runner`, see `batch`). Raises SetupError when the machine cannot."""

    def __init__(self, directory: Path, manifest: EngineManifest) -> None:
        self.vocab_size = manifest.vocab_size
        self.tokens_per_block = manifest.kv_cache.tokens_per_block
        network = _compiled(directory, manifest)
        self._request = network.create_infer_request()
        self.num_blocks = self._allocate(network, manifest.kv_cache.size_bytes)

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        """Compute every slot and write its keys and values into its blocks."""
        tokens: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        sampled: list[int] = []
        longest = 0
        for slot in slots:
            end = slot.past + len(slot.tokens)
            tokens += slot.tokens
            positions += range(slot.past, end)
            past.append(slot.past)
            begins.append(len(tokens))
            blocks += slot.blocks
            block_begins.append(len(blocks))
            longest = max(longest, end)
            if slot.sample:
                sampled.append(len(tokens) - 1)
        if len(tokens) == 1:
            # One row alone takes another kernel, which rounds otherwise: a token would depend on its company.
            tokens.append(0)
            positions.append(0)
            past.append(0)
            begins.append(2)
            blocks.append(self.num_blocks)
            block_begins.append(len(blocks))
        # At least two rows for the head too: the same reason, and one chunk of a long prompt samples nothing.
        rows = sampled if len(sampled) > 1 else [len(tokens) - 1, *(sampled or [0])]
        self._set("input_ids", tokens, np.int64)
        self._set("position_ids", positions, np.int64)
        self._set("past_lens", past, np.int32)
        self._set("subsequence_begins", begins, np.int32)
        self._set("block_indices", blocks, np.int32)
        self._set("block_indices_begins", block_begins, np.int32)
        self._set("max_context_len", longest, np.int32)
        self._set("sampled_rows", rows, np.int64)
        self._request.infer()
        if not sampled:
            return None
        outputs = (self._request.get_tensor(name).data for name in ("top_ids", "top_logits", "logits"))
        return Rows(*(rows_[-len(sampled) :] for rows_ in outputs))

    def _set(self, name: str, value: Any, dtype: type[np.generic]) -> None:
        self._request.set_tensor(name, ov.Tensor(np.array(value, dtype)))

    def _allocate(self, network: Any, size_bytes: int) -> int:
        """Give every layer its caches, with one spare block for padding; returns how many fit into `size_bytes`."""
        caches = {port.get_any_name(): port for port in network.inputs if "_cache." in port.get_any_name()}
        shapes = {
            name: [side.get_length() for side in list(port.get_partial_shape())[1:]] for name, port in caches.items()
        }
        block_bytes = sum(int(np.prod(shapes[name])) * port.get_element_type().size for name, port in caches.items())
        count = int(size_bytes // block_bytes)
        try:
            for name, port in caches.items():
                tensor = ov.Tensor(port.get_element_type(), ov.Shape([count + 1, *shapes[name]]))
                self._request.set_tensor(name, tensor)
        except (MemoryError, RuntimeError):
            raise SetupError(
                f"no memory for a KV cache of {format_bytes(size_bytes)}",
                where="engine.kv_cache.size",
                fix="Give the plan a smaller one and build again.",
            ) from None
        return count


def _compiled(directory: Path, manifest: EngineManifest) -> Any:
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": manifest.precision,
        "KV_CACHE_PRECISION": manifest.kv_cache.dtype,
        # Scales by token: a block's content must not depend on how its tokens arrived.
        "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
    }
    if manifest.threads is not None:
        options["INFERENCE_NUM_THREADS"] = manifest.threads
    if manifest.precision == "bf16" and not has_bf16():
        raise SetupError(
            "this CPU lacks avx512_bf16, which the engine was built for",
            where=str(directory),
            fix="Build it on this machine, or with `engine.precision: f32`.",
        )
    try:
        return ov.Core().compile_model(load_model(directory / MODEL_FILE, manifest), "CPU", options)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise SetupError(f"OpenVINO cannot load the engine: {reason}", where=str(directory)) from error
