"""Whom the gateway lets in: bounds from the plan or from what the engine holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conch.gateway.admission.capacity import Capacity
from conch.gateway.admission.gate import bounds_of
from conch.gateway.admission.line import Bounds
from conch.gateway.settings import ModelSettings, Server
from conch_build.errors import PlanError
from conch_build.manifest import EngineManifest
from conch_build.plan import parse_plan
from conch_build.plan_admission import Queue

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult


def settings(servers: int, capacity: Capacity) -> ModelSettings:
    return ModelSettings(
        name="m",
        servers=tuple(Server(f"127.0.0.1:{port}") for port in range(servers)),
        tokenizer=Path("nowhere"),
        max_seq_len=100,
        vocab_size=100,
        end_ids=(1,),
        top_candidates=1,
        capacity=capacity,
    )


def test_bounds_come_from_what_all_servers_hold_together() -> None:
    bounds = bounds_of(Queue(), settings(2, Capacity(batch=64, queue=1000, kv_tokens=20_000)), 2)
    assert bounds == Bounds(running=2 * 72, running_tokens=40_000, waiting=2000, waiting_tokens=math.inf)
    assert bounds_of(Queue(), settings(1, Capacity(kv_tokens=None)), 1).running_tokens == math.inf


def test_the_plan_wins() -> None:
    plan = Queue(running=3, running_tokens=500, waiting=0, waiting_tokens=900)
    assert bounds_of(plan, settings(2, Capacity(kv_tokens=20_000)), 2) == Bounds(3, 500, 0, 900)


def test_capacity_is_the_engines(sample_build: BuildResult) -> None:
    engine = EngineManifest.load(sample_build.engine.path)
    capacity = Capacity.of(sample_build.engine.path, engine)
    assert (capacity.batch, capacity.queue) == (engine.max_batch_size, engine.max_queue_size)
    held = capacity.kv_tokens
    assert held is not None
    blocks, block = divmod(held, engine.kv_cache.tokens_per_block)
    assert block == 0
    assert blocks * engine.kv_block_bytes <= engine.kv_cache.size_bytes < (blocks + 1) * engine.kv_block_bytes


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("queue: {running: 0}", "queue.running"),
        ("limits: {request_timeout: 10}", "limits.request_timeout.*needs a number and a unit"),
        ("limits: {head_bytes: 10B}", "limits.head_bytes"),
        ("limits: {write_timeout: 0s}", "limits.write_timeout"),
        ("limits: {request_timout: 1s}", "did you mean `request_timeout`"),
    ],
)
def test_a_bound_that_makes_no_sense_is_refused_by_its_key(key: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan(f"name: a\nmodel: {{checkpoint: sample}}\nserving: {{gateway: {{{key}}}}}\n")
