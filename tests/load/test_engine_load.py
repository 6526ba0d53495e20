"""The engine under long and uneven load, without a server in between."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from conch.engine import Engine, EngineConfig, Output, Request, SamplingParams
from conch.engine.runner import OpenVINORunner
from conch_build.pipeline import build
from conch_build.plan import parse_plan
from conch_build.store import Store
from tests.build.compiled import compile_checkpoint
from tests.build.tiny import write_tiny
from tests.conftest import SAMPLE_PLAN
from tests.engine.test_runner import resident_mib

pytest.importorskip("openvino")

REQUESTS = 20_000
ENDLESS = SamplingParams(temperature=0.0, end_ids=frozenset())


def many_shapes(rng: random.Random) -> Iterator[Request]:
    """Prompts of one to eighty tokens, some alike, greedy and sampled, some of several answers."""
    shared = [rng.randrange(300) for _ in range(64)]
    for number in range(REQUESTS):
        prompt = shared[: rng.choice([0, 32, 64])] + [rng.randrange(300) for _ in range(rng.randint(1, 16))]
        sampling = ENDLESS if number % 3 else SamplingParams(top_p=0.9, seed=number, frequency_penalty=0.2)
        yield Request(str(number), prompt, rng.randint(1, 6), sampling, n=2 if number % 50 == 0 else 1)


@pytest.mark.slow
def test_memory_stays_flat_over_many_requests(tmp_path: Path) -> None:
    """A tenth of the callers leave early. What the first half of the run has taken is all that is ever taken."""
    engine_dir = tmp_path / "engine"
    manifest = compile_checkpoint(write_tiny(tmp_path / "tiny"), engine_dir, format="none", max_batch_size=32)
    rng = random.Random(1)
    room, resident = threading.Semaphore(64), []

    def sink(output: Output) -> None:
        if output.final:
            room.release()

    config = EngineConfig.from_manifest(manifest)
    with Engine(OpenVINORunner(engine_dir, manifest), config) as engine:
        for number, request in enumerate(many_shapes(rng)):
            room.acquire()
            engine.submit(request, sink)
            if rng.random() < 0.1:
                engine.cancel(request.id)
            if number % (REQUESTS // 8) == 0:
                gc.collect()
                resident.append(resident_mib())
        for _ in range(64):
            room.acquire()
        stats = engine.stats()
    print("\nMiB resident after each eighth:", [round(mib) for mib in resident])
    assert sum(stats.requests_total.values()) == REQUESTS
    assert stats.kv_blocks_used == stats.running == stats.waiting == 0
    assert resident[-1] - resident[4] < 6


@pytest.fixture(scope="module")
def long_engine(home: None) -> Iterator[Engine]:
    """The sample model with room for a prompt of 4,000 tokens beside sixteen that are answered."""
    plan = yaml.safe_load(SAMPLE_PLAN)
    plan["name"] = "long"
    plan["engine"]["max_seq_len"] = 4096
    with Engine.load(build(parse_plan(yaml.safe_dump(plan)), Store()).engine.path) as engine:
        yield engine


@pytest.mark.slow
def test_a_long_prompt_hardly_slows_those_who_read(long_engine: Engine) -> None:
    """No gap between two tokens of sixteen streams is longer than three usual ones while 4,000 tokens are computed.

    The machine's own hiccups count as gaps too, so the best of a few rounds is taken.
    """
    rng = np.random.default_rng(0)
    worst = []
    for turn in range(5):
        worst.append(longest_gap(long_engine, turn, rng))
        if worst[-1] <= 3:
            break
    print("\nlongest gap over the median:", [round(value, 2) for value in worst])
    assert min(worst) <= 3


def longest_gap(engine: Engine, turn: int, rng: np.random.Generator) -> float:
    """Of sixteen streams while a long prompt is computed, over the median gap of the whole turn."""
    times: list[list[float]] = [[] for _ in range(17)]
    ended = threading.Semaphore(0)

    def ask(index: int, length: int, tokens: int) -> None:
        def sink(output: Output) -> None:
            times[index] += [time.perf_counter()] * bool(output.tokens)
            if output.final:
                ended.release()

        prompt = [int(token) for token in rng.integers(100, 40_000, length)]
        engine.submit(Request(f"{turn}-{index}", prompt, tokens, ENDLESS), sink)

    for index in range(16):
        ask(index, 20, 250)
    while min(len(each) for each in times[:16]) < 20:
        time.sleep(0.01)
    ask(16, 4000, 1)
    for _ in range(17):
        ended.acquire()
    gaps = np.concatenate([np.diff(each) for each in times[:16]])
    during = [gap for each in times[:16] for gap in np.diff(each)[19:]]
    return float(max(during) / np.median(gaps))
