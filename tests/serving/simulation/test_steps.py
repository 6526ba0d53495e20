"""Step times: fitted, kept, and simulated beside a real engine."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.bench.traffic.lengths import Lengths
from conch.engine.config import EngineConfig
from conch.engine.request import Output
from conch.simulation.calibrate import Bench
from conch.simulation.clock import simulated
from conch.simulation.fleet import Fleet, run_closed
from conch.simulation.jobs import Gaps, Job
from conch.simulation.steps import Measured, Shape, fit
from conch.simulation.workload import Workload
from conch_build.errors import InputError
from tests.serving.simulation.sleeping import SleepingRunner

CHAT = Workload(Lengths("uniform", 32, 160), Lengths("uniform", 16, 40), seed=3)


def test_the_clock_leaps_and_real_time_stands_still() -> None:
    async def nap() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert simulated(nap()) == pytest.approx(3600)
    assert time.monotonic() - began < 5


def test_a_simulation_that_waits_for_nothing_ends_with_an_error() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="never comes"):
        simulated(forever())


def test_fitted_costs_give_the_times_that_were_measured(tmp_path: Path) -> None:
    chance = random.Random(0)
    shapes = [
        Shape(n := chance.randrange(40), n * 200, chance.randrange(300), chance.randrange(9000)) for _ in range(300)
    ]
    truth = Measured((0.01, 0.002, 1e-4, 1e-8, 1e-6, 4e-4, 1e-4, 0.0, 1e-3))
    noise = [chance.choice((0.9, 1.1)) for _ in shapes]
    found = fit(shapes, [truth.seconds(shape) * factor for shape, factor in zip(shapes, noise, strict=True)])
    for shape in shapes[:50]:
        assert found.seconds(shape) == pytest.approx(truth.seconds(shape), rel=0.06)
    assert np.percentile(found.spread, [10, 90]) == pytest.approx([0.9, 1.1], rel=0.05)
    found.save(tmp_path / "steps.json")
    assert Measured.load(tmp_path / "steps.json") == found


@pytest.mark.parametrize("text", ["", "{}", '{"weights": [1], "spread": [1]}', '{"weights": "x", "spread": []}'])
def test_a_file_without_step_times_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text(text)
    with pytest.raises(InputError, match="holds no step times"):
        Measured.load(tmp_path / "steps.json")


def test_percentiles_of_gaps_are_within_a_quarter_percent() -> None:
    values = np.random.default_rng(0).lognormal(-3, 1, 5000)
    gaps = Gaps()
    for value in values:
        gaps.add(float(value))
    for share in (0.5, 0.95):
        assert gaps.percentile(share) == pytest.approx(np.percentile(values, 100 * share), rel=0.01)


@pytest.mark.slow
def test_a_real_engine_over_steps_of_known_times_behaves_as_simulated() -> None:
    bench = Bench(SleepingRunner(), EngineConfig(max_batch_size=32))  # type: ignore[arg-type]
    try:
        before = bench.calibrate(3.0, longest_prompt=160, most=6)
        real = played(bench, CHAT.jobs([0.0] * 30), 6)
        after = bench.calibrate(3.0, longest_prompt=160, most=6)
    finally:
        bench.close()
    sides = [forecast(bench, times, CHAT.jobs([0.0] * 30), 6) for times in (before, after)]
    for name, bound in {"tokens_s": 0.1, "itl_p50": 0.1, "e2e_p50": 0.1, "e2e_p95": 0.1, "ttft_p50": 0.35}.items():
        found = (sides[0][name] * sides[1][name]) ** 0.5
        assert found == pytest.approx(real[name], rel=bound), name


@pytest.mark.slow
def test_the_cpu_engine_behaves_as_simulated_on_steps_timed_just_before_and_after(sample_build: Any) -> None:
    """Others may use the machine: the middle of three pairs counts, and only gross errors fail."""
    bench = Bench.load(sample_build.engine.path)
    ratios: list[dict[str, float]] = []
    try:
        for seed in range(3):
            before = bench.calibrate(1.2, 160, 6, seed)
            real = played(bench, CHAT.jobs([0.0] * 9), 6)
            after = bench.calibrate(1.2, 160, 6, seed + 100)
            sides = [forecast(bench, times, CHAT.jobs([0.0] * 9), 6) for times in (before, after)]
            ratios.append({name: (sides[0][name] * sides[1][name]) ** 0.5 / value for name, value in real.items()})
    finally:
        bench.close()
    print(ratios)
    for name in ("tokens_s", "itl_p50", "e2e_p50"):
        assert 0.6 < float(np.median([ratio[name] for ratio in ratios])) < 1.7, name


def played(bench: Bench, jobs: Iterator[Job], concurrency: int) -> dict[str, float]:
    """The same closed loop on the real engine."""
    began, chance = time.perf_counter(), random.Random(time.perf_counter_ns())
    asked: list[float] = []
    heard: list[list[float]] = []
    done = threading.Semaphore(0)

    def ask() -> None:
        job = next(jobs, None)
        if job is None:
            done.release()
            return
        asked.append(time.perf_counter() - began)
        arrivals: list[float] = []
        heard.append(arrivals)

        def hear(output: Output) -> None:
            if output.tokens:
                arrivals.append(time.perf_counter() - began)
            if output.final:
                ask()

        bench.submit([chance.randrange(bench.timed.vocab_size) for _ in job.prompt], job.answer, hear)

    for _ in range(concurrency):
        ask()
    for _ in range(concurrency):
        done.acquire()
    gaps = np.concatenate([np.diff(arrivals) for arrivals in heard])
    ttft = [arrivals[0] - at for at, arrivals in zip(asked, heard, strict=True)]
    e2e = [arrivals[-1] - at for at, arrivals in zip(asked, heard, strict=True)]
    tokens = sum(map(len, heard)) / max(arrivals[-1] for arrivals in heard)
    return summary(tokens, ttft, e2e, np.percentile(gaps, 50), np.percentile(gaps, 95))


def forecast(bench: Bench, times: Measured, jobs: Iterator[Job], concurrency: int) -> dict[str, float]:
    outcome = run_closed(Fleet(bench.hardware(times), 1), jobs, concurrency)
    ttft, e2e = ([getattr(job, name) - job.due for job in outcome.jobs] for name in ("first", "last"))
    gaps = outcome.use.gaps
    return summary(outcome.use.tokens / outcome.seconds, ttft, e2e, gaps.percentile(0.5), gaps.percentile(0.95))


def summary(tokens_s: float, ttft: list[float], e2e: list[float], itl_p50: Any, itl_p95: Any) -> dict[str, float]:
    shares = {
        f"{name}_p{p}": float(np.percentile(v, p)) for name, v in (("ttft", ttft), ("e2e", e2e)) for p in (50, 95)
    }
    return {"tokens_s": tokens_s, "itl_p50": float(itl_p50), "itl_p95": float(itl_p95), **shares}
