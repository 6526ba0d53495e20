"""A tiny language model in integer arithmetic, so that its results are the same in any batch.

Its keys are numbers kept in blocks, as a real runner keeps them: each depends on the one before, and the
logits on every one of them, read through the block table from blocks as they were before the step. A wrong
table, a stale block, one shared too early, a token skipped or repeated: each changes the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conch.engine import Rows, Slot

MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    value = ((value ^ (value >> 31)) * 0x9E3779B97F4A7C15) & MASK
    return (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9 & MASK


class ToyRunner:
    """Logits are spread like a small model's; `top` best tokens are given beside them."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        tokens_per_block: int = 4,
        vocab_size: int = 61,
        top: int = 8,
        max_num_tokens: int = 1 << 30,
    ) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self.layout = f"toy/{tokens_per_block}/{vocab_size}"
        self.vocab_size = vocab_size
        self.top = top
        self.max_num_tokens = max_num_tokens
        self.steps: list[list[int]] = []
        """For each step, how many tokens each slot computed."""
        self._keys = np.random.default_rng(7).integers(0, MASK, (num_blocks, tokens_per_block), np.uint64)
        self._head = np.array([_mix(token + 1) for token in range(vocab_size)], np.uint64)

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        self.steps.append([len(slot.tokens) for slot in slots])
        assert 0 < sum(self.steps[-1]) <= self.max_num_tokens
        before = self._keys.copy()
        logits = [row for slot in slots for row in self._compute(slot, before)]
        if not logits:
            return None
        rows = np.stack(logits)
        ids = np.argsort(-rows, axis=1, kind="stable")[:, : self.top]
        return Rows(ids, np.take_along_axis(rows, ids, axis=1), rows)

    def _compute(self, slot: Slot, before: np.ndarray) -> list[np.ndarray]:
        size = self.tokens_per_block
        end = slot.past + len(slot.tokens)
        assert slot.tokens and end <= len(slot.blocks) * size
        history = before[slot.blocks].reshape(-1)[:end]
        key = int(history[slot.past - 1]) if slot.past else 0
        for position, token in enumerate(slot.tokens, slot.past):
            key = _mix(key ^ (token * 1_000_003 + position))
            history[position] = self._keys[slot.blocks[position // size], position % size] = key
        return [self._logits(history[: end - back]) for back in reversed(range(slot.rows))]

    def _logits(self, history: np.ndarray) -> np.ndarray:
        state = (history * np.arange(1, 2 * len(history), 2, dtype=np.uint64)).sum(dtype=np.uint64)
        noise = (state ^ self._head) * np.uint64(0xD6E8FEB86659FD93)
        noise = (noise ^ (noise >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        uniform = ((noise >> np.uint64(40)).astype(np.float32) + 0.5) / np.float32(1 << 24)
        return -np.log(-np.log(uniform)) * np.float32(1.5)

    def copy_block(self, source: int, target: int) -> None:
        self._keys[target] = self._keys[source]

    def read_blocks(self, blocks: Sequence[int]) -> list[np.ndarray]:
        return [self._keys[list(blocks)]]

    def fits(self, content: Sequence[np.ndarray], count: int) -> bool:
        return [each.shape for each in content] == [(count, self.tokens_per_block)]

    def write_blocks(self, blocks: Sequence[int], content: Sequence[np.ndarray]) -> None:
        (self._keys[list(blocks)],) = content
