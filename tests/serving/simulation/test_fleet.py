"""Fleets in simulated time: against queueing theory, against each other, and when servers die, come and go."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from conch.bench.traffic.lengths import Lengths
from conch.bench.traffic.loads import poisson
from conch.bench.traffic.slo import Limits
from conch.engine.config import EngineConfig
from conch.simulation.clock import simulated
from conch.simulation.counted import CountedReplica, Policy
from conch.simulation.figures import figures
from conch.simulation.fleet import Fleet, Outcome, run_closed, run_open
from conch.simulation.jobs import Job
from conch.simulation.outside import Failures, Scaling, Split
from conch.simulation.replica import EngineReplica, Hardware, Use
from conch.simulation.steps import Measured
from conch.simulation.workload import Workload
from conch_build.queueing import Queue

TIMES = Measured((0.01, 0.0, 0.0001, 0.0, 1e-7, 0.0002, 0.0, 0.0, 0.0))
ENGINE = Hardware(EngineConfig(max_batch_size=16), 1000, 32, TIMES, kv_token_bytes=1e5)
CHAT = Workload(Lengths("uniform", 50, 200), Lengths("uniform", 20, 60))


def ttft(outcome: Outcome) -> list[float]:
    return [job.first - job.due for job in outcome.jobs if job.error is None]


def test_places_of_a_batch_are_the_servers_of_a_queue() -> None:
    """Answers of exponential lengths over steps of one length are M/M/c with as many servers as places."""
    places, step, mean_answer, load = 4, 0.01, 60, 0.8
    hardware = Hardware(EngineConfig(max_batch_size=places), 100_000, 32, Measured((step, *[0.0] * 8)))
    chance = random.Random(1)
    rate = load * places / (mean_answer * step)
    starts = poisson(rate, 10_000, seed=2)
    jobs = [Job(n, at, range(2), 1 + int(chance.expovariate(1 / mean_answer))) for n, at in enumerate(starts)]
    outcome = run_open(Fleet(hardware, 1, Policy.GUARANTEED, waiting=100_000), jobs)
    service = [job.last - job.scheduled for job in outcome.jobs]
    waits = [job.scheduled - job.due for job in outcome.jobs]
    theory = Queue(rate, float(np.mean(service)), places)
    assert np.mean(waits) == pytest.approx(theory.mean_wait_seconds, rel=0.12)
    assert np.percentile(waits, 95) == pytest.approx(theory.wait_seconds(0.95), rel=0.12)


def test_counted_tokens_agree_with_the_engines_own_scheduler() -> None:
    for rate in (5, 15):
        own, counted = (
            run_open(Fleet(ENGINE, 2, policy), CHAT.at_rate(rate, 400)) for policy in (None, Policy.OPTIMISTIC)
        )
        assert counted.seconds == pytest.approx(own.seconds, rel=0.03)
        assert np.median(ttft(counted)) == pytest.approx(np.median(ttft(own)), rel=0.1)
        for share in (0.5, 0.95):
            assert counted.use.gaps.percentile(share) == pytest.approx(own.use.gaps.percentile(share), rel=0.1)


@pytest.mark.parametrize("kind", [EngineReplica, CountedReplica])
def test_an_engine_short_of_blocks_preempts_and_still_answers_everyone(
    kind: type[EngineReplica] | type[CountedReplica],
) -> None:
    talkative = Workload(Lengths("uniform", 50, 100), Lengths("uniform", 150, 300))
    jobs, use = list(talkative.jobs([0.0] * 40)), Use()

    async def all_at_once() -> None:
        server = kind("server", replace(ENGINE, num_blocks=40), use)
        await asyncio.gather(*(server.serve(job, job.answer) for job in jobs))

    simulated(all_at_once())
    assert [job.produced for job in jobs] == [job.answer for job in jobs]
    assert use.preemptions > 0


def test_nobody_is_preempted_whose_whole_answer_has_its_blocks() -> None:
    outcome = run_closed(Fleet(replace(ENGINE, num_blocks=20), 1, Policy.GUARANTEED), CHAT.jobs([0.0] * 60), 16)
    assert outcome.use.tokens == sum(job.answer for job in outcome.jobs)
    assert outcome.use.preemptions == 0


@pytest.mark.parametrize("policy", [None, Policy.OPTIMISTIC])
def test_a_shared_prefix_is_computed_once_a_server(policy: Policy | None) -> None:
    outcome = run_closed(Fleet(ENGINE, 2, policy), replace(CHAT, shared_prefix=320).jobs([0.0] * 40), 2)
    assert sum(job.cached == 320 for job in outcome.jobs) == 38


def test_the_same_seed_gives_the_same_figures() -> None:
    fleet = Fleet(replace(ENGINE, times=replace(TIMES, spread=(0.8, 1.2))), 2, failures=Failures(10.0, 2.0))
    first, again, other = (
        figures(each, run_open(each, CHAT.at_rate(10, 200)), None, None)
        for each in (fleet, fleet, replace(fleet, seed=1))
    )
    assert first == again != other


def test_what_the_line_cannot_hold_is_refused() -> None:
    outcome = run_open(Fleet(ENGINE, 1, waiting=3), CHAT.at_rate(500, 200))
    assert outcome.peak_waiting == 3
    assert sum(job.error == "refused" for job in outcome.jobs) > 50


def test_a_death_costs_only_requests_that_had_begun_to_answer() -> None:
    outcome = run_open(Fleet(ENGINE, 3, failures=Failures(20.0, 3.0)), CHAT.at_rate(12, 600))
    lost = [job for job in outcome.jobs if job.error]
    assert outcome.deaths > 2
    assert all(job.error == "server died" and job.produced > 0 for job in lost)
    assert any(job.began_anew for job in outcome.jobs if job.error is None)
    assert 0 < len(lost) < 0.2 * len(outcome.jobs)


def test_servers_are_added_after_their_start_and_taken_away_when_it_is_calm() -> None:
    scaling = Scaling(1, 4, target=8, start_seconds=10.0, every=1.0, calm_seconds=5.0)
    starts = [*(n / 40 for n in range(800)), *(40 + n for n in range(60))]
    outcome = run_open(Fleet(ENGINE, 1, scaling=scaling), CHAT.jobs(starts))
    assert not [job for job in outcome.jobs if job.error]
    assert outcome.most_servers == 4
    assert outcome.server_seconds < 3 * outcome.seconds
    alone = run_open(Fleet(ENGINE, 1), CHAT.jobs(starts))
    assert np.percentile(ttft(outcome), 95) < 0.7 * np.percentile(ttft(alone), 95)


def test_readers_keep_long_prompts_from_those_who_read_answers() -> None:
    mixed = Workload(Lengths("uniform", 500, 2000), Lengths("fixed", 60))
    hardware = replace(ENGINE, config=replace(ENGINE.config, max_seq_len=4096))
    split = Split(prefill=1, link_bytes_s=1e10)
    together, apart = (
        run_open(Fleet(hardware, 2 - bool(way), Policy.GUARANTEED, way), mixed.at_rate(4, 200)) for way in (None, split)
    )
    slow, fast = together.use.gaps.percentile(0.99), apart.use.gaps.percentile(0.99)
    assert slow is not None and fast is not None and fast < slow / 2
    assert apart.use.tokens + apart.prefill_use.tokens == 200 * 60
    size = sum(len(job.prompt) for job in apart.jobs)
    assert apart.link_seconds == pytest.approx(size * hardware.kv_token_bytes / split.link_bytes_s)
    local = run_open(Fleet(hardware, 1, None, replace(split, local_tokens=5000)), mixed.at_rate(4, 40))
    assert local.link_seconds == 0


def test_readers_hand_over_to_the_engines_own_scheduler() -> None:
    split = Split(prefill=1, link_bytes_s=1e8)
    outcome = run_open(Fleet(ENGINE, 1, None, split), CHAT.at_rate(5, 60))
    assert all(job.produced == job.answer and job.moved > 0 for job in outcome.jobs)
    assert outcome.use.prompt_tokens == 60  # of each job the token that came along, whose keys nobody has computed


def test_goodness_is_that_of_the_bench() -> None:
    fleet = Fleet(ENGINE, 1)
    outcome = run_open(fleet, CHAT.at_rate(5, 100))
    median = float(np.median(ttft(outcome)))
    row = figures(fleet, outcome, Limits({"ttft": median}), None)
    assert row["good_share"] == pytest.approx(0.5, abs=0.02)
    assert row["ttft_p50_ms"] == pytest.approx(1e3 * median)
