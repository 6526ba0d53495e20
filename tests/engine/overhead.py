"""Print what the engine itself costs a step, over a runner that computes nothing.

Run it with `python -m tests.engine.overhead`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from conch.engine import Engine, EngineConfig, Output, Request, Rows, SamplingParams, Slot

TOKENS = 400
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_k 40": {"top_k": 40},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
    "frequency penalty": {"frequency_penalty": 0.5},
    "greedy, 5 log probs": {"temperature": 0.0, "top_log_probs": 5},
}


class Idle:
    """Rows as spread as a small language model's: probabilities fall with the power 1.6 of the rank."""

    vocab_size, num_blocks, tokens_per_block, layout = 49_152, 4096, 32, "idle"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        by_rank = (-1.6 * np.log(np.arange(1, self.vocab_size + 1))).astype(np.float32)
        self._rows = np.stack([rng.permutation(by_rank) for _ in range(64)])
        self._ids = np.argsort(-self._rows, axis=1)[:, :64].copy()
        self._logits = np.take_along_axis(self._rows, self._ids, axis=1)

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        count = sum(slot.rows for slot in slots)
        return Rows(self._ids[:count], self._logits[:count], self._rows[:count]) if count else None


def milliseconds_a_step(sequences: int, **sampling: Any) -> float:
    ended = threading.Semaphore(0)

    def sink(output: Output) -> None:
        if output.finish_reason is not None:
            ended.release()

    with Engine(Idle(), EngineConfig()) as engine:
        for number in range(sequences):
            prompt = [(number * 7919 + position) % 49_000 for position in range(32)]
            engine.submit(Request(str(number), prompt, TOKENS, SamplingParams(**sampling)), sink)
        for _ in range(sequences):
            ended.acquire()
        stats = engine.stats()
    return stats.step_seconds_total / stats.steps_total * 1e3


if __name__ == "__main__":
    print(f"{'ms a step, sequences:':30}{1:>8}{8:>8}{32:>8}")
    for kind, sampling in KINDS.items():
        costs = [min(milliseconds_a_step(count, **sampling) for _ in range(3)) for count in (1, 8, 32)]
        print(f"{kind:30}" + "".join(f"{cost:8.3f}" for cost in costs))
