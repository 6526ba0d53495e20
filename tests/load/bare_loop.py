"""The fastest that the compiled model can go: a loop around the runner with nothing else in it.

No scheduler, no requests that come and go, no sampling beyond the best token, no server: what the whole stack is
measured against. `python -m tests.load.bare_loop ENGINE [CONCURRENCY ...]` prints tokens/s.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from conch.bench.load import Workload
from conch.engine.batch import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.manifest import EngineManifest


class BareLoop:
    """Greedy generation of a fixed batch that starts and ends together."""

    def __init__(self, engine: Path) -> None:
        from transformers import AutoTokenizer

        self.runner = OpenVINORunner(engine, EngineManifest.load(engine))
        self.tokenizer = AutoTokenizer.from_pretrained(engine / "tokenizer")
        self.first = 0

    def tokens_per_second(self, sequences: int, workload: Workload) -> float:
        prompts = [self._prompt(workload, self.first + n) for n in range(sequences)]
        self.first += sequences
        size = self.runner.tokens_per_block
        per_sequence = -(-(max(map(len, prompts)) + workload.max_tokens) // size)
        slots = [
            Slot(prompt, 0, list(range(n * per_sequence, (n + 1) * per_sequence)), True)
            for n, prompt in enumerate(prompts)
        ]
        started = time.perf_counter()
        for _ in range(workload.max_tokens):
            rows = self.runner.step(slots)
            assert rows is not None
            for slot, token in zip(slots, rows.top_ids[:, 0].tolist(), strict=True):
                slot.past += len(slot.tokens)
                slot.tokens = [token]
        return sequences * workload.max_tokens / (time.perf_counter() - started)

    def _prompt(self, workload: Workload, number: int) -> list[int]:
        messages = workload.body(number)["messages"]
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return ids


if __name__ == "__main__":
    loop = BareLoop(Path(sys.argv[1]))
    for count in map(int, sys.argv[2:] or ["1", "8", "32"]):
        print(f"{count}: {max(loop.tokens_per_second(count, Workload('bare')) for _ in range(3)):.0f} tok/s")
