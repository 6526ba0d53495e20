"""LoRA adapters as TensorRT-LLM knows them: by a number, under which it keeps the weights that it read first.

So new weights under an old name get a new number, and running answers end with those that they began with. TensorRT-LLM
itself decides which adapters are in the GPU's memory; what is unloaded here is refused, and goes when room is needed.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conch.engine.stats import AdapterState, AdapterStats
from conch_build.adapter_registry import AdapterRegistry, RegisteredAdapter
from conch_build.adapters import WEIGHTS
from conch_build.errors import NotFoundError, RequestError


@dataclass(frozen=True)
class Lora:
    """What `LoRARequest` takes."""

    name: str
    number: int
    path: Path


class LlmAdapters:
    """Those of a repository; None: it has none. Safe to use from any thread."""

    def __init__(self, registry: AdapterRegistry | None) -> None:
        self._known: dict[str, RegisteredAdapter] = {}
        self._slots = registry.max_loaded if registry else 0
        if registry is not None:
            self._known = {adapter.name: adapter for adapter in registry.adapters}
        self._numbers = {name: adapter.id for name, adapter in self._known.items()}
        self._next = max(self._numbers.values(), default=0) + 1
        self._used: set[str] = set()
        self._running: Counter[str] = Counter()
        self._loads = 0
        self._lock = threading.Lock()

    def hold(self, name: str) -> Lora:
        """The adapter for one more answer, until `release`. Raises NotFoundError for an unknown or unloaded one."""
        with self._lock:
            number = self._numbers.get(name)
            if number is None:
                raise NotFoundError(f"no adapter {name!r} is served", param="lora_task_id", code="model_not_found")
            if name not in self._used:
                self._used.add(name)
                self._loads += 1
            self._running[name] += 1
            return Lora(name, number, self._known[name].path)

    def release(self, name: str) -> None:
        with self._lock:
            self._running[name] -= 1

    def load(self, name: str) -> None:
        """Weights are read again when the next request needs them. Raises NotFoundError, RequestError without files."""
        with self._lock:
            path = self._adapter(name).path
            if not (path / WEIGHTS).is_file():
                raise RequestError(f"there is no {WEIGHTS} in {path}", param="lora_task_id")
            self._used.discard(name)
            self._numbers[name] = self._next
            self._next += 1

    def unload(self, name: str) -> None:
        """New requests for it are refused; those that run end with it. Raises NotFoundError."""
        with self._lock:
            self._adapter(name)
            self._numbers.pop(name, None)
            self._used.discard(name)

    def states(self) -> list[AdapterState]:
        with self._lock:
            return [
                AdapterState(name, adapter.id, self._state(name), self._running[name], 0)
                for name, adapter in self._known.items()
            ]

    def stats(self) -> AdapterStats:
        with self._lock:
            return AdapterStats(slots=self._slots, used=min(self._slots, len(self._used)), loads=self._loads)

    def _state(self, name: str) -> Literal["loaded", "available", "unloaded"]:
        if name not in self._numbers:
            return "unloaded"
        return "loaded" if name in self._used else "available"

    def _adapter(self, name: str) -> RegisteredAdapter:
        if name not in self._known:
            raise NotFoundError(f"no adapter {name!r} is registered", param="lora_task_id", code="model_not_found")
        return self._known[name]
