"""The climb: builds what each rung needs, judges the quantized ones, then measures all rungs in turns.

A rung that cannot be built or that fails is out, with its reason; the others go on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from conch.bench.contests import turns
from conch.bench.workloads import Texts
from conch.evaluation import EngineEvaluator
from conch.ladder.rows import Climbed
from conch.ladder.rungs import APART, TRANSFORMERS, Rung, plan_of
from conch.ladder.side import Side
from conch.ladder.workload import KINDS, Job, asks
from conch_build.checkpoint import Checkpoint
from conch_build.errors import ConchError, SetupError
from conch_build.extras import require
from conch_build.pipeline import build_engine, judged, registered
from conch_build.plan import Lora, Plan, Speculation
from conch_build.quality import Figures
from conch_build.store import Store

Say = Callable[[str], None]
_LEAST_ROUNDS = 2
"""An interval needs two."""
_SAMPLES = 16
"""Texts that perplexity is of, at most: enough to tell formats apart, and half a minute less."""


@dataclass(frozen=True)
class Load:
    requests: int
    """Of a round, rounded up to whole mixes of lengths."""
    at_once: int
    minutes: float
    """That rounds are repeated for; two are measured however long they take."""


class Ascent:
    """`adapters`: name -> folder, what the adapters' rungs serve; none: they cannot run."""

    def __init__(self, plan: Plan, checkpoint: Checkpoint, adapters: Mapping[str, str], load: Load, say: Say) -> None:
        self._plan, self._checkpoint, self._adapters = plan, checkpoint, adapters
        self._load, self._say, self._store = load, say, Store(say=say)

    def climb(self, rungs: Sequence[Rung], texts: Texts) -> list[Climbed]:
        self._texts = texts
        climbed = [Climbed(rung) for rung in rungs]
        with ExitStack() as stack:
            sides: dict[str, Side] = {}
            for one in climbed:
                with self._or_out(one):
                    setup = self._setup(one, stack)
                    sides[one.rung.name] = Side(one.rung.name, setup, self._warm_up(one.rung))
                    stack.callback(sides[one.rung.name].stop)
            self._rounds(climbed, sides)
        return climbed

    def _rounds(self, climbed: Sequence[Climbed], sides: Mapping[str, Side]) -> None:
        """Each round begins with another rung; one that the time is too short for is not begun."""
        until, longest, number = time.monotonic() + 60 * self._load.minutes, 0.0, 0
        by_name = {one.rung.name: one for one in climbed}
        while number < _LEAST_ROUNDS or time.monotonic() + longest < until:
            there = [name for name, one in by_name.items() if one.skipped is None]
            if not there:
                return
            started = time.monotonic()
            for place, name in enumerate(turns(there, number), 1):
                one, side = by_name[name], sides[name]
                with self._or_out(one, side):
                    one.rounds.append(side.measure(self._job(one.rung, f"round-{number}", self._load.requests)))
                    one.peak_bytes = side.peak_bytes
                    told = f"{one.rounds[-1].tokens_per_second:.1f} tok/s"
                    self._say(f"round {number + 1}, {place}/{len(there)}  {one.rung.title}: {told}")
            if number:  # the first one starts the processes, too
                longest = max(longest, time.monotonic() - started)
            number += 1

    def _job(self, rung: Rung, chapter: str, requests: int) -> Job:
        """The same for all rungs, but that those that answer one by one take a quarter: it tells their pace as well."""
        mixes = -(-requests // len(KINDS))
        if rung.one_by_one:
            mixes = max(1, mixes // 4)
        adapters = tuple(self._adapters) if rung.mixes_adapters else ()
        asked = asks(self._texts, chapter, mixes * len(KINDS), adapters)
        if rung.cuts_answers:
            asked = tuple(replace(ask, max_tokens=ask.max_tokens // 4) for ask in asked)
        return Job(asked, 1 if rung.one_by_one else self._load.at_once)

    def _warm_up(self, rung: Rung) -> Job:
        job = self._job(rung, "warm-up", len(KINDS))
        return Job(job.asks[:1], 1) if rung.one_by_one else job

    @contextmanager
    def _or_out(self, one: Climbed, side: Side | None = None) -> Iterator[None]:
        try:
            yield
        except ConchError as error:
            one.skipped = error.message
            self._say(f"{one.rung.name} is left out: {error.message}")
            if side is not None:
                side.stop()

    def _setup(self, one: Climbed, stack: ExitStack) -> dict[str, Any]:
        """What the rung's worker is told."""
        rung = one.rung
        if rung.name in TRANSFORMERS:
            require("transformers' rungs", "build", "torch", "transformers")
            cache, batched = TRANSFORMERS[rung.name]
            threads = self._plan.engine.threads
            return {
                "kind": "transformers",
                "checkpoint": str(self._checkpoint.path),
                "dtype": "bfloat16" if plan_of(rung, self._plan, {}).quantization.kv_cache == "bf16" else "float32",
                "threads": len(os.sched_getaffinity(0)) if threads == "auto" else threads,
                "cache": cache,
                "batched": batched,
            }
        if rung.mixes_adapters and not self._adapters:
            raise SetupError("the plan names no adapter, and none was made for this model", where="engine.lora")
        plan = plan_of(rung, self._plan, self._adapters)
        self._say(f"building {rung.name}")
        checkpoint, engine = build_engine(plan, self._store)
        if plan.quantization.format != "none":
            one.quality = self._quality(plan)
        registry = registered(plan, checkpoint.info)
        registries = [] if registry is None else [registry]
        if registry is not None and rung.name == APART:
            registries = [registry.model_copy(update={"adapters": (each,)}) for each in registry.adapters]
        return {
            "kind": "engine",
            "engine": str(stack.enter_context(engine.hold())),
            "registries": [each.model_dump(mode="json") for each in registries],
        }

    def _quality(self, plan: Plan) -> Figures:
        """Of the weights, whatever guesses for them or is added to them. What the store knows is not measured again."""
        engine = plan.engine.model_copy(update={"speculation": Speculation(), "lora": Lora()})
        quality = plan.quality.model_copy(update={"samples": min(plan.quality.samples, _SAMPLES)})
        plan = plan.model_copy(update={"engine": engine, "quality": quality})
        checkpoint, built = build_engine(plan, self._store)
        return Figures.load(judged(plan, self._store, checkpoint, built, EngineEvaluator(), say=self._say).path)
