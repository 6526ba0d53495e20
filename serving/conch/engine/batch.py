"""What passes between the engine and the runner that computes a step. Knows no kernel library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Slot:
    """One sequence's share of a step: compute `tokens`, which follow `past` tokens already in `blocks`."""

    tokens: list[int]
    past: int
    blocks: list[int]
    """The block table; it already covers `past + len(tokens)` tokens."""
    sample: bool
    """Give the logits that follow the last token."""


class Rows(NamedTuple):
    """The step's result: one row for each slot with `sample`, in their order. Valid until the next step."""

    top_ids: NDArray[np.integer[Any]]
    """[rows, K] the K best tokens of each row, best first; K is at least 1."""
    top_logits: NDArray[np.float32]
    """[rows, K] their logits."""
    logits: NDArray[np.float32]
    """[rows, vocabulary]; a view that costs nothing until it is read."""


class Runner(Protocol):
    """Computes steps and owns the memory of the KV blocks, which are numbered from 0."""

    vocab_size: int
    num_blocks: int
    tokens_per_block: int

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        """Compute every slot, write its keys and values into its blocks; None if no slot is to be sampled."""
