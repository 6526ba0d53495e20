"""What the sides are asked: exact lengths, the same for all, nothing that an earlier prompt has left in a cache."""

from __future__ import annotations

import itertools

import pytest

from conch.bench.figures import Timing
from conch.bench.workloads import LONG, PREFIX, REPEAT, SHORT, WORKLOADS, Measured, Texts, Workload, figures, jobs, tiny

TEXTS = Texts(
    ["one two three four", "five six seven", "eight nine ten"] * 5, lambda text: [hash(w) for w in text.split()]
)
BLOCK = 16


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_every_prompt_has_exactly_its_length(workload: Workload, concurrency: int) -> None:
    job = jobs(workload, concurrency, 0, TEXTS)[-1]
    assert {len(prompt) for prompt in job.prompts} == {workload.prompt_tokens}
    assert job.max_tokens == workload.max_tokens
    assert len(job.prompts) >= concurrency


def test_prompts_are_the_same_for_every_side() -> None:
    assert jobs(LONG, 8, 1, TEXTS) == jobs(LONG, 8, 1, TEXTS)


def test_no_prompt_finds_a_block_of_an_earlier_one() -> None:
    asked = itertools.product((SHORT, LONG), (1, 8), (0, 1, 2))
    starts = [prompt[:BLOCK] for workload, level, n in asked for prompt in jobs(workload, level, n, TEXTS)[-1].prompts]
    assert len(set(starts)) == len(starts)


def test_a_shared_prefix_is_sent_first_and_is_new_in_each_round() -> None:
    prepares, measured = jobs(PREFIX, 8, 0, TEXTS)
    (shared,) = prepares.prompts
    assert len(shared) == 1000
    assert all(prompt[:1000] == shared for prompt in measured.prompts)
    assert len({prompt[1000:] for prompt in measured.prompts}) == 8
    assert jobs(PREFIX, 8, 1, TEXTS)[0].prompts[0][:BLOCK] != shared[:BLOCK]


def test_repeats_are_told_from_cold_prompts() -> None:
    (job,) = jobs(REPEAT, 1, 0, TEXTS)
    assert job.prompts[::2] == job.prompts[1::2]
    timings = [Timing((first, first + 0.1), 2, 1000) for _ in range(4) for first in (1.0, 0.02)]
    cold, again = figures(REPEAT, job, Measured(10, timings))
    assert (cold.ttft_p50_ms, again.ttft_p50_ms) == (1000, 20)


def test_a_quick_run_asks_for_little_of_everything() -> None:
    small = [tiny(workload) for workload in WORKLOADS]
    assert [workload.name for workload in small] == [workload.name for workload in WORKLOADS]
    assert sum(len(jobs(workload, 1, 0, TEXTS)[-1].prompts) for workload in small) <= 5
    assert max(workload.prompt_tokens + workload.max_tokens for workload in small) < 128
