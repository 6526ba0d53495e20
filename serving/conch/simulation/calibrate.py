"""How long steps of a CPU engine take on this machine: a real engine is given work of all kinds, each step is timed.

A step's time is that from its beginning to the beginning of the next, with all that the engine's thread does between.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from conch.engine.batch import Rows, Runner, Slot
from conch.engine.config import EngineConfig
from conch.engine.core import Engine
from conch.engine.request import Output, Request, SamplingParams
from conch.simulation.replica import Hardware
from conch.simulation.steps import Measured, Shape, fit
from conch_build.errors import SetupError, UnsupportedError
from conch_build.manifest import EngineManifest

_LEAST_STEPS = 40
_SAMPLING = SamplingParams(temperature=0.0, end_ids=frozenset())


class Timed:
    """A runner that keeps the shape and the beginning of every step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.vocab_size, self.num_blocks = runner.vocab_size, runner.num_blocks
        self.tokens_per_block, self.layout = runner.tokens_per_block, runner.layout
        self.steps: list[tuple[float, Shape]] = []

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        self.steps.append((time.perf_counter(), shape_of(slots)))
        return self._runner.step(slots)

    def copy_block(self, source: int, target: int) -> None:
        self._runner.copy_block(source, target)

    def read_blocks(self, blocks: Sequence[int]) -> list[Any]:
        return self._runner.read_blocks(blocks)

    def fits(self, content: Sequence[Any], count: int) -> bool:
        return self._runner.fits(content, count)

    def write_blocks(self, blocks: Sequence[int], content: Sequence[Any]) -> None:
        self._runner.write_blocks(blocks, content)


class Bench:
    """A real engine, in process, whose steps are timed. To be closed."""

    def __init__(self, runner: Runner, config: EngineConfig, kv_token_bytes: float = 0.0) -> None:
        self.timed = Timed(runner)
        self.config = config
        self.engine = Engine(self.timed, config)
        self._token_bytes = kv_token_bytes
        self._asked = 0

    @classmethod
    def load(cls, folder: Path) -> Bench:
        """Over a compiled engine. Raises StoreError, SetupError, or UnsupportedError for one that speculates."""
        from conch.engine.runner import OpenVINORunner
        from conch_build.machine import free_memory_bytes

        manifest = EngineManifest.load(folder)
        if manifest.speculation.method != "none":
            raise UnsupportedError(
                "speculates, whose steps are not simulated", where=str(folder), fix="Build it without speculation."
            )
        runner = OpenVINORunner(folder, manifest, manifest.num_blocks(free_memory_bytes()))
        token_bytes = manifest.kv_block_bytes / manifest.kv_cache.tokens_per_block
        return cls(runner, EngineConfig.from_manifest(manifest), token_bytes)

    def hardware(self, times: Measured) -> Hardware:
        return Hardware(self.config, self.timed.num_blocks, self.timed.tokens_per_block, times, self._token_bytes)

    def submit(self, prompt: Sequence[int], answer: int, on_output: Callable[[Output], None]) -> None:
        self._asked += 1
        self.engine.submit(Request(f"r{self._asked}", prompt, answer, _SAMPLING), on_output)

    def calibrate(self, seconds: float, longest_prompt: int, most: int, seed: int = 0) -> Measured:
        """Work with up to `most` requests at once for so long, and what its steps cost."""
        chance = random.Random(seed)
        shapes: list[Shape] = []
        took: list[float] = []
        levels = sorted({1, 2, *(most // part for part in (1, 2, 4) if most // part)})
        for level in levels:
            self._load(seconds / len(levels), level, longest_prompt, chance)
            shapes_of, took_of = intervals(self.timed.steps)
            shapes += shapes_of
            took += took_of
        if len(took) < _LEAST_STEPS:
            raise SetupError(f"only {len(took)} steps in {seconds:g} s", fix="Calibrate for longer.")
        return fit(shapes, took)

    def close(self) -> None:
        self.engine.close()

    def _load(self, seconds: float, at_once: int, longest_prompt: int, chance: random.Random) -> None:
        """`at_once` requests at any time, each followed by another until time is up."""
        until = time.perf_counter() + seconds
        left = threading.Semaphore(0)
        self.timed.steps = []
        vocabulary = self.timed.vocab_size

        def ask() -> None:
            count = chance.randint(2, longest_prompt)
            self.submit([chance.randrange(vocabulary) for _ in range(count)], chance.randint(8, 48), heard)

        def heard(output: Output) -> None:
            if not output.final:
                return
            if time.perf_counter() < until:
                ask()
            else:
                left.release()

        for _ in range(at_once):
            ask()
        for _ in range(at_once):
            left.acquire()


def intervals(steps: Sequence[tuple[float, Shape]]) -> tuple[list[Shape], list[float]]:
    """Shapes and seconds of all steps but the last, whose end nobody saw."""
    shapes = [shape for _, shape in steps[:-1]]
    return shapes, [after - before for (before, _), (after, _) in pairwise(steps)]


def shape_of(slots: Sequence[Slot]) -> Shape:
    decoding = context = prompt = attended = 0
    for slot in slots:
        count = len(slot.tokens)
        if slot.single and slot.rows and count == 1:
            decoding += 1
            context += slot.past
        else:
            prompt += count
            attended += count * slot.past + count * (count - 1) // 2
    return Shape(decoding, context, prompt, attended)
