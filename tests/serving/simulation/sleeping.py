"""A runner whose steps take known times, which it sleeps: a real engine over it shows what its schedule is worth."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from conch.engine.batch import Rows, Slot
from conch.simulation.calibrate import shape_of
from conch.simulation.steps import Measured

TIMES = Measured((0.04, 0.0, 0.0004, 0.0, 2e-6, 0.001, 0.0, 0.0, 0.0))


class SleepingRunner:
    vocab_size = 1000
    tokens_per_block = 32
    layout = "sleeping"

    def __init__(self, num_blocks: int = 2000) -> None:
        self.num_blocks = num_blocks

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        time.sleep(TIMES.seconds(shape_of(slots)))
        rows = sum(slot.rows for slot in slots)
        if not rows:
            return None
        return Rows(np.full((rows, 1), 7), np.ones((rows, 1), np.float32), np.ones((rows, 8), np.float32))

    def copy_block(self, source: int, target: int) -> None:
        pass

    def read_blocks(self, blocks: Sequence[int]) -> list[Any]:
        return []

    def fits(self, content: Sequence[Any], count: int) -> bool:
        return True

    def write_blocks(self, blocks: Sequence[int], content: Sequence[Any]) -> None:
        pass
