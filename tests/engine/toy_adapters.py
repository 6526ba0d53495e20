"""LoRA adapters of the toy model: a number in a file, which changes every key that is computed with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conch.engine import Engine, EngineConfig, Slot
from conch.engine.adapter_slots import AdapterWeights
from conch.engine.adapters import Adapters
from conch.engine.speculation import Speculation
from conch_build.adapter_registry import AdapterRegistry, RegisteredAdapter
from conch_build.errors import CheckpointError
from tests.engine.toy_runner import ToyRunner


class ToyNetwork:
    """Its weights are read when `gate` is open, which it is unless a test closes it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.rows: dict[int, int] = {}
        self.reads: list[str] = []

    def prepare(self) -> None:
        pass

    def read(self, folder: Path) -> AdapterWeights:
        assert self.gate.wait(30)
        self.reads.append(folder.name)
        try:
            number = int(folder.read_text())
        except ValueError:
            raise CheckpointError("is no number", where=str(folder), fix="Write one.") from None
        return AdapterWeights({"layer": (np.array([[number]], np.float32),) * 2}, str(number).encode())

    def install(self, row: int, weights: AdapterWeights) -> None:
        self.rows[row] = int(weights.digest)


class AdaptedToyRunner(ToyRunner):
    """Tokens computed with an adapter count as others. Notes which adapters ran in each step."""

    def __init__(self, network: ToyNetwork, **settings: Any) -> None:
        super().__init__(**settings)
        self.network = network
        self.together: list[set[int]] = []

    def step(self, slots: Any) -> Any:
        self.together.append({self.network.rows[slot.adapter] if slot.adapter else 0 for slot in slots})
        return super().step([self._changed(slot) for slot in slots])

    def _changed(self, slot: Slot) -> Slot:
        if not slot.adapter:
            return slot
        return replace(slot, tokens=[token + 1000 * self.network.rows[slot.adapter] for token in slot.tokens])


class Toy:
    """An engine over the toy model with adapters called by single letters, each a file in `folder`."""

    def __init__(
        self, folder: Path, names: str, *, slots: int, speculation: Speculation | None = None, **config: Any
    ) -> None:
        self.folder = folder
        for number, name in enumerate(names, 1):
            self.write(name, number)
        registry = AdapterRegistry(
            adapters=tuple(RegisteredAdapter(name=n, id=i, path=folder / n) for i, n in enumerate(names, 1)),
            layers=("layer",),
            max_rank=1,
            max_loaded=slots,
        )
        self.network = ToyNetwork()
        self.runner = AdaptedToyRunner(self.network, num_blocks=256)
        settings = EngineConfig(**{"max_batch_size": 8, "max_num_tokens": 64, "max_seq_len": 512, **config})
        self.engine = Engine(self.runner, settings, speculation, adapters=Adapters(registry, self.network))

    def write(self, name: str, weights: object) -> None:
        (self.folder / name).write_text(str(weights))

    def state(self, name: str) -> str:
        return next(adapter.state for adapter in self.engine.adapters() if adapter.name == name)


MakeToy = Callable[..., Toy]
