"""One forward step on OpenVINO: slots in, candidate tokens out. Owns the model and the memory of the KV blocks.

Knows nothing of requests, sampling or scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from conch.engine.batch import Rows, Slot
from conch.engine.lora import LoraNetwork
from conch_build.adapter_registry import AdapterRegistry
from conch_build.compile.openvino import MODEL_FILE
from conch_build.compile.openvino.attention import load_model
from conch_build.compile.openvino.lora import NOTHING, add_nothing
from conch_build.errors import SetupError
from conch_build.machine import free_memory_bytes, has_bf16
from conch_build.manifest import EngineManifest
from conch_build.units import format_bytes


class OpenVINORunner:
    """Runs the engine in `directory` (a `Runner`, see `batch`). Raises SetupError when the machine cannot.

    `num_blocks` KV blocks are allocated; by default as many as the manifest's `kv_cache.size_bytes` holds. With
    `adapters` there is a `lora` network beside the plain one.
    """

    def __init__(
        self,
        directory: Path,
        manifest: EngineManifest,
        num_blocks: int | None = None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self.vocab_size = manifest.vocab_size
        self.tokens_per_block = manifest.kv_cache.tokens_per_block
        self.layout = manifest.kv_layout
        self.num_blocks = manifest.num_blocks(free_memory_bytes()) if num_blocks is None else num_blocks
        alike = partial(add_nothing, names=adapters.layers) if adapters and manifest.precision == "bf16" else None
        network = _compiled(directory, manifest, alike)
        self._request = network.create_infer_request()
        self._caches = self._allocate(network, manifest.kv_block_bytes)
        if alike is not None:
            self._set(self._request, NOTHING, [[0]], np.float32)
        self.lora: LoraNetwork | None = None
        if adapters is not None:
            caches = {name: self._request.get_tensor(name) for name in _cache_names(network)}
            self.lora = LoraNetwork(adapters, partial(_compiled, directory, manifest), caches, self._warm)

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        """Compute every slot and write its keys and values into its blocks."""
        adapted = self.lora is not None and any(slot.adapter for slot in slots)
        return self._compute(self.lora.request(slots) if self.lora and adapted else self._request, slots)

    def _warm(self, request: Any) -> None:
        """Make a network's first step, in which it packs its weights, with the spare block."""
        self._compute(request, [Slot([0], 0, [self.num_blocks], 1)])

    def _compute(self, request: Any, slots: Sequence[Slot]) -> Rows | None:
        tokens: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        wanted: list[int] = []
        longest = 0
        for slot in slots:
            end = slot.past + len(slot.tokens)
            tokens += slot.tokens
            positions += range(slot.past, end)
            # Tokens that follow each other in one step may be sequences of their own: all keys are written first.
            for start in range(slot.past, end) if slot.single else (slot.past,):
                past.append(start)
                begins.append(len(tokens) - end + start + 1 if slot.single else len(tokens))
                blocks += slot.blocks
                block_begins.append(len(blocks))
            longest = max(longest, end)
            wanted += range(len(tokens) - slot.rows, len(tokens))
        if len(tokens) == 1:
            # One row alone takes another kernel, which rounds otherwise: a token would depend on its company.
            tokens.append(0)
            positions.append(0)
            past.append(0)
            begins.append(2)
            blocks.append(self.num_blocks)
            block_begins.append(len(blocks))
        # At least two rows for the head too: the same reason, and one chunk of a long prompt samples nothing.
        rows = wanted if len(wanted) > 1 else [len(tokens) - 1, *(wanted or [0])]
        self._set(request, "input_ids", tokens, np.int64)
        self._set(request, "position_ids", positions, np.int64)
        self._set(request, "past_lens", past, np.int32)
        self._set(request, "subsequence_begins", begins, np.int32)
        self._set(request, "block_indices", blocks, np.int32)
        self._set(request, "block_indices_begins", block_begins, np.int32)
        self._set(request, "max_context_len", longest, np.int32)
        self._set(request, "sampled_rows", rows, np.int64)
        request.infer()
        if not wanted:
            return None
        outputs = (request.get_tensor(name).data for name in ("top_ids", "top_logits", "logits"))
        return Rows(*(rows_[-len(wanted) :] for rows_ in outputs))

    def copy_block(self, source: int, target: int) -> None:
        for cache in self._caches:
            cache[target] = cache[source]

    def read_blocks(self, blocks: Sequence[int]) -> list[NDArray[Any]]:
        return [cache[list(blocks)] for cache in self._caches]

    def fits(self, content: Sequence[NDArray[Any]], count: int) -> bool:
        wanted = [(cache.dtype, (count, *cache.shape[1:])) for cache in self._caches]
        return [(new.dtype, new.shape) for new in content] == wanted

    def write_blocks(self, blocks: Sequence[int], content: Sequence[NDArray[Any]]) -> None:
        for cache, new in zip(self._caches, content, strict=True):
            cache[list(blocks)] = new

    def _allocate(self, network: Any, block_bytes: int) -> list[NDArray[Any]]:
        """Give every layer its caches, with one spare block for padding."""
        caches = []
        try:
            for port in map(network.input, _cache_names(network)):
                kind = port.get_element_type()
                block = [side.get_length() for side in list(port.get_partial_shape())[1:]]
                # Plain memory of the same width: numpy has no bf16, and blocks are only copied. Not cleared: what is
                # not touched takes no memory, and nothing is read from a block before it was written.
                cache = np.empty((self.num_blocks + 1, *block), f"u{kind.size}")
                self._request.set_tensor(port, ov.Tensor(cache, ov.Shape(cache.shape), kind))
                caches.append(cache)
        except (MemoryError, RuntimeError):
            raise SetupError(
                f"no memory for a KV cache of {format_bytes(self.num_blocks * block_bytes)}",
                where="engine.kv_cache",
                fix="Give the plan a smaller one and build again.",
            ) from None
        return caches

    def _set(self, request: Any, name: str, value: Any, dtype: type[np.generic]) -> None:
        request.set_tensor(name, ov.Tensor(np.array(value, dtype)))


def _cache_names(network: Any) -> list[str]:
    return [name for port in network.inputs if "_cache." in (name := port.get_any_name())]


def _compiled(directory: Path, manifest: EngineManifest, change: Callable[[ov.Model], None] | None = None) -> Any:
    """The graph, after a change to it, ready to run here."""
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": manifest.precision,
        "KV_CACHE_PRECISION": manifest.kv_cache.dtype,
        # Scales by token: a block's content must not depend on how its tokens arrived.
        "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        # Activations that share a scale where weights are of 8 or 4 bits. The default, 32, costs a seventh of the time.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64,
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
        model = load_model(directory / MODEL_FILE, manifest)
        if change is not None:
            change(model)
        return ov.Core().compile_model(model, "CPU", options)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise SetupError(f"OpenVINO cannot load the engine: {reason}", where=str(directory)) from error
