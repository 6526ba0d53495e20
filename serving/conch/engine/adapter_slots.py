"""The rows of the network's slots: which adapter is in which, who holds it, and which one makes room.

A request holds its adapter from its admission to its end, so that what runs never changes its weights. An adapter that
is retired gets no new holders, and its row is free when the last one has ended. Knows nothing of who waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from conch.engine.sequence import Sequence

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter as it was read; `digest` tells its content from any other."""

    layers: Mapping[str, tuple[Floats, Floats]]
    """Layer -> A [rank, in], B [rank, out] with the scale in it."""
    digest: bytes


class Network(Protocol):
    """What holds the weights; see `lora.LoraNetwork`."""

    def prepare(self) -> None: ...

    def read(self, folder: Path) -> AdapterWeights: ...

    def install(self, row: int, weights: AdapterWeights) -> None: ...


@dataclass(eq=False)
class _Loaded:
    """An adapter in a row."""

    name: str
    row: int
    digest: bytes
    holders: int = 0
    retired: bool = False
    """Unloaded or replaced: no new request gets it."""


class AdapterSlots:
    """`count` rows of `network`. Changed by the engine's thread alone."""

    def __init__(self, count: int, network: Network) -> None:
        self._network = network
        self._current: OrderedDict[str, _Loaded] = OrderedDict()  # what new requests get, least recently used first
        self._rows: list[_Loaded | None] = [None] * count
        self.loads = self.evictions = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        """Whether new requests can have it."""
        return name in self._current

    @property
    def used(self) -> int:
        return sum(loaded is not None for loaded in self._rows)

    def holders(self, name: str) -> int:
        """Answers that use it, with whatever weights."""
        return sum(loaded.holders for loaded in list(self._rows) if loaded is not None and loaded.name == name)

    def holds(self, name: str, weights: AdapterWeights) -> bool:
        """Whether new requests for it get these weights."""
        return name in self._current and self._current[name].digest == weights.digest

    def install(self, name: str, weights: AdapterWeights) -> bool:
        """Put an adapter in a free row, if need be that of the one that was not used for longest; False without one."""
        row = self._free_row()
        if row is None:
            return False
        self._network.install(row, weights)
        self._current[name] = self._rows[row - 1] = _Loaded(name, row, weights.digest)
        self.loads += 1
        return True

    def hold(self, name: str, sequence: Sequence) -> None:
        """All answers to a request use the same weights, and share their KV blocks with no others."""
        loaded = self._current[name]
        self._current.move_to_end(name)
        for answer in (sequence, *sequence.siblings):
            answer.slot.adapter = loaded.row
            answer.salt = loaded.digest
            loaded.holders += 1

    def release(self, sequence: Sequence) -> None:
        """An answer has ended, whether it held an adapter or not."""
        loaded = self._rows[sequence.slot.adapter - 1] if sequence.slot.adapter else None
        if loaded is not None:
            sequence.slot.adapter = 0
            loaded.holders -= 1
            self._clear(loaded)

    def retire(self, name: str) -> None:
        """New requests do not get it as it is."""
        loaded = self._current.pop(name, None)
        if loaded is not None:
            loaded.retired = True
            self._clear(loaded)

    def _clear(self, loaded: _Loaded) -> None:
        if loaded.retired and not loaded.holders:
            self._rows[loaded.row - 1] = None

    def _free_row(self) -> int | None:
        if None not in self._rows:
            idle = next((loaded for loaded in self._current.values() if not loaded.holders), None)
            if idle is None:
                return None
            self.retire(idle.name)
            self.evictions += 1
        return self._rows.index(None) + 1
