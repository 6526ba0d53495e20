"""The step with LoRA adapters: a second compiled network, with slots, and the memory of the slots.

It shares the KV caches of the plain network, which computes every step that needs no adapter: those pay nothing.
Row n of the slots is for `Slot.adapter == n`, from 1. Knows nothing of names or of who uses which row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from conch.engine.adapter_slots import AdapterWeights, Floats
from conch.engine.batch import Slot
from conch_build.adapter_registry import AdapterRegistry
from conch_build.adapters import open_adapter
from conch_build.compile.openvino.lora import MASK, add_slots, linear_layers
from conch_build.errors import CheckpointError

HEIGHT_STEP = 8
"""Rows of slots are so many ranks high, or a multiple of it."""


class LoraNetwork:
    """`compiled` compiles the engine's graph after a change to it; `caches` are the KV caches by input name; `warm`
    makes the first step of a network.

    It is compiled by the first call of `prepare`, which may take seconds and may be made on any thread.
    """

    def __init__(
        self,
        registry: AdapterRegistry,
        compiled: Callable[[Callable[[ov.Model], None]], Any],
        caches: Mapping[str, ov.Tensor],
        warm: Callable[[Any], None],
    ) -> None:
        self._registry = registry
        self._compiled = compiled
        self._caches = caches
        self._warm = warm
        self._request: Any = None
        self._shapes: dict[str, tuple[int, int]] = {}
        self._a: dict[str, Floats] = {}  # [in, rows, height]
        self._b: dict[str, Floats] = {}  # [rows, height, out]
        self._rows = self._height = 0  # both grow as needed: each step's time depends on them
        self._preparing = threading.Lock()

    def prepare(self) -> None:
        """Compile and make the first step, unless that is done."""
        with self._preparing:
            if self._request is not None:
                return
            network = self._compiled(self._add_slots)
            request = network.create_infer_request()
            for name, cache in self._caches.items():
                request.set_tensor(name, cache)
            self._resize(request, 1, HEIGHT_STEP)
            request.set_tensor(MASK, ov.Tensor(np.zeros((2, HEIGHT_STEP), np.float32)))
            self._warm(request)
            self._request = request

    def read(self, folder: Path) -> AdapterWeights:
        """Read a PEFT directory; on any thread. Raises CheckpointError if it does not fit."""
        self.prepare()
        adapter = open_adapter(folder, self._shapes, self._registry.max_rank)
        if others := sorted(adapter.pairs.keys() - set(self._registry.layers)):
            what = f"adds to `{others[0]}`, to which no adapter added when the repository was packed"
            raise CheckpointError(what, where=str(folder), fix="Build again and restart.", rule="lora.target-modules")
        digest = sha256()
        layers = {}
        for name, a, b in adapter.weights():
            layers[name] = (a, b)
            for part in (name.encode(), a.tobytes(), b.tobytes()):
                digest.update(part)
        return AdapterWeights(layers, digest.digest())

    def install(self, row: int, weights: AdapterWeights) -> None:
        """Put an adapter in row `row`. Between two steps, when nothing uses that row."""
        rank = max(len(a) for a, _ in weights.layers.values())
        rows, height = max(row, self._rows), max(-(-rank // HEIGHT_STEP) * HEIGHT_STEP, self._height)
        if (rows, height) != (self._rows, self._height):
            self._resize(self._request, rows, height)
        for name in self._registry.layers:
            into_a, into_b = self._a[name][:, row - 1], self._b[name][row - 1]
            into_a[:], into_b[:] = 0, 0
            if name in weights.layers:
                a, b = weights.layers[name]
                into_a[:, : len(a)], into_b[: len(b)] = a.T, b

    def request(self, slots: Sequence[Slot]) -> Any:
        """The infer request for a step of `slots`, its mask set; a lone token is padded to two."""
        height = self._height
        tokens = sum(len(slot.tokens) for slot in slots)
        mask = np.zeros((max(2, tokens), self._rows * height), np.float32)
        begin = 0
        for slot in slots:
            end = begin + len(slot.tokens)
            if slot.adapter:
                mask[begin:end, (slot.adapter - 1) * height : slot.adapter * height] = 1
            begin = end
        self._request.set_tensor(MASK, ov.Tensor(mask))
        return self._request

    def _resize(self, request: Any, rows: int, height: int) -> None:
        """Make room for more rows or higher ones."""
        for name, (outputs, inputs) in ((name, self._shapes[name]) for name in self._registry.layers):
            a, b = np.zeros((inputs, rows, height), np.float32), np.zeros((rows, height, outputs), np.float32)
            if self._rows:
                a[:, : self._rows, : self._height] = self._a[name]
                b[: self._rows, : self._height] = self._b[name]
            self._a[name], self._b[name] = a, b
            request.set_tensor(f"lora_a.{name}", ov.Tensor(a.reshape(inputs, -1), shared_memory=True))
            request.set_tensor(f"lora_b.{name}", ov.Tensor(b.reshape(-1, outputs), shared_memory=True))
        self._rows, self._height = rows, height

    def _add_slots(self, model: ov.Model) -> None:
        self._shapes = linear_layers(model)
        add_slots(model, self._registry.layers)
