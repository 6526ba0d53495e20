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
    rows: int
    """Give the logits that follow each of the last `rows` tokens; 0 gives none."""
    single: bool = False
    """Round each token as if it were computed in a step of its own: its row must not depend on those beside it."""
    adapter: int = 0
    """Which of the loaded LoRA adapters to add; 0 adds none."""


class Rows(NamedTuple):
    """The step's result: the rows that the slots want, in their order. Valid until the next step."""

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
    layout: str
    """The same for those who can use each other's blocks: model, weights, type of the caches."""

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        """Compute every slot, write its keys and values into its blocks; None if no slot wants a row."""

    def copy_block(self, source: int, target: int) -> None:
        """Make the content of block `target` that of `source`."""

    def read_blocks(self, blocks: Sequence[int]) -> list[NDArray[Any]]:
        """The content of `blocks`: for each cache an array whose first axis are the blocks. A copy."""

    def fits(self, content: Sequence[NDArray[Any]], count: int) -> bool:
        """Whether `write_blocks` can put `content` into `count` blocks: their number, shapes and types."""

    def write_blocks(self, blocks: Sequence[int], content: Sequence[NDArray[Any]]) -> None:
        """Put what `read_blocks` gave, here or in another process, into `blocks`; it `fits`."""
