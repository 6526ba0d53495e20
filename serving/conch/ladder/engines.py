"""Conch's engine in this process: so many requests at once, each followed by the next. One engine answers all, or each
adapter has one of its own.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path

from conch.bench.figures import Timing
from conch.engine import Engine, Output, Request, SamplingParams
from conch.engine.loading import load_engine
from conch.ladder.workload import Ask, Job
from conch_build.adapter_registry import AdapterRegistry


class Engines:
    """`registries`: those of each engine; several: one engine an adapter."""

    def __init__(self, folder: Path, registries: Sequence[AdapterRegistry | None]) -> None:
        self._engines: dict[str | None, Engine] = {}
        for registry in registries:
            engine = load_engine(folder, registry)
            for adapter in registry.adapters if registry else ():
                engine.load_adapter(adapter.name)
                self._engines[adapter.name] = engine
            self._engines[None] = engine

    def run(self, job: Job) -> list[Timing]:
        """In the order of their ends. Raises what the engine says of a request."""
        outputs: queue.SimpleQueue[tuple[float, Output]] = queue.SimpleQueue()
        started: dict[int, float] = {}
        arrivals: dict[int, list[float]] = {}
        done: list[Timing] = []
        waiting = iter(enumerate(job.asks))

        def submit(number: int, ask: Ask) -> None:
            started[number], arrivals[number] = time.perf_counter(), []
            sampling = SamplingParams(temperature=0.0, end_ids=frozenset())
            request = Request(str(number), ask.prompt, ask.max_tokens, sampling, adapter=ask.adapter)
            self._engines[ask.adapter].submit(request, lambda output: outputs.put((time.perf_counter(), output)))

        for _, entry in zip(range(job.at_once), waiting, strict=False):
            submit(*entry)
        while len(done) < len(job.asks):
            when, output = outputs.get()
            number = int(output.request_id)
            if output.error:
                raise output.error
            if output.tokens:
                arrivals[number].append(when - started[number])
            if output.final:
                ask = job.asks[number]
                done.append(Timing(tuple(arrivals[number]), ask.max_tokens, len(ask.prompt)))
                if following := next(waiting, None):
                    submit(*following)
        return done
