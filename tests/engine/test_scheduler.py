"""Which tokens a step computes: pure decisions, no thread and no model."""

from __future__ import annotations

from typing import Any

import pytest

from conch.engine import EngineConfig, Request, SamplingParams
from conch.engine.pace import FEWEST, FIRST_GUESS, Pace
from conch.engine.scheduler import Batch, Scheduler
from conch.engine.sequence import Sequence
from conch_build.errors import RequestError

SIZE = 4


class Line:
    """A scheduler and a model that always answers 1."""

    def __init__(self, *, blocks: int = 1000, **config: Any) -> None:
        self.config = EngineConfig(**{"max_batch_size": 8, "max_num_tokens": 1024, "max_seq_len": 4096, **config})
        self.scheduler = Scheduler(self.config, blocks, SIZE)
        self.made = 0

    def add(self, prompt: int | list[int], *, max_tokens: int = 500, priority: int = 0) -> Sequence:
        ids = list(range(prompt)) if isinstance(prompt, int) else prompt
        sampling = SamplingParams(temperature=0.0)
        request = Request(str(self.made), ids, max_tokens, sampling, priority=priority)
        sequence = Sequence(request, print, self.made, self.config)
        self.made += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[Sequence, int]:
        """Tokens computed of each sequence."""
        batch: Batch = self.scheduler.schedule(self.scheduler.decoding())
        counts = {sequence: len(slot.tokens) for sequence, slot in batch}
        assert sum(counts.values()) <= self.config.max_num_tokens
        for sequence, slot in batch:
            assert len(slot.blocks) * SIZE >= slot.past + len(slot.tokens)
            self.scheduler.settle(sequence, slot.past + len(slot.tokens))
            assert slot.rows == (not sequence.missing)
            if not sequence.missing:
                sequence.tokens.append(1)
        return counts


def test_prompts_fill_the_step_in_the_order_they_came() -> None:
    line = Line(max_num_tokens=10, max_batch_size=3, reuse=False)
    first, second, third = line.add(6), line.add(6), line.add(1)
    assert line.step() == {first: 6, second: 4}
    assert line.step() == {first: 1, second: 2, third: 1}
    assert line.step() == {first: 1, second: 1, third: 1}


@pytest.mark.parametrize("length", [300, 320, 321, 33, 1, 2, 3, 5, 6, 9])
def test_no_chunk_of_a_prompt_is_a_single_token_whoever_else_is_served(length: int) -> None:
    """But one that ends right behind a block: it is single however much was computed before."""
    for others in (0, 1, 5, 40):
        line = Line(blocks=100_000, max_num_tokens=300, max_batch_size=64, reuse=False)
        for n in range(others):
            line.add(40 + n)
        for _ in range(20):
            line.step()
        prompt = line.add(length)
        while not prompt.produced:
            past = prompt.past
            count = line.step().get(prompt, 0)
            assert count != 1 or (past == length - 1 and length % SIZE == 1)
            assert not count or prompt.slot.single == (count == 1)


def test_a_higher_priority_goes_first() -> None:
    line = Line(max_batch_size=1)
    line.add(3, priority=-1)
    line.add(3)
    urgent = line.add(3, priority=5)
    assert list(line.step()) == [urgent]


def test_a_long_prompt_leaves_decoding_sequences_their_pace() -> None:
    line = Line(max_num_tokens=2048)
    readers = [line.add([n + 1]) for n in range(4)]
    line.step()
    long = line.add(2000)
    assert line.step() == {**dict.fromkeys(readers, 1), long: FIRST_GUESS}


def test_a_step_takes_as_much_of_a_prompt_as_doubles_its_time() -> None:
    pace = Pace()
    assert pace.tokens(16, 1) == FIRST_GUESS
    for _ in range(50):
        pace.record(16, 0, 0.020)
    for price in (0.0005, 0.001, 0.004):
        for _ in range(12):
            tokens = pace.tokens(16, 1)
            pace.record(16, tokens, 0.020 + price * tokens)
        assert tokens == pytest.approx(max(FEWEST, 0.020 / price), abs=1)
        assert pace.tokens(16, 5) == pytest.approx(5 * tokens, rel=0.1, abs=5), "each prompt may add as much"


def test_one_slow_step_costs_a_prompt_little() -> None:
    pace = Pace()
    for _ in range(50):
        pace.record(4, 0, 0.010)
        pace.record(4, 20, 0.020)
    pace.record(4, 20, 0.500)
    for _ in range(8):
        tokens = pace.tokens(4, 1)
        pace.record(4, tokens, 0.010 + 0.0005 * tokens)
    assert pace.tokens(4, 1) > 15


def test_a_crowd_of_prompts_is_not_held_up_by_one_reader() -> None:
    line = Line(max_num_tokens=2048, reuse=False)
    reader = line.add(1)
    line.step()
    for _ in range(5):
        line.add(200)
    counts = line.step()
    assert counts.pop(reader) == 1
    assert sum(counts.values()) == 5 * FIRST_GUESS


def test_the_batch_never_grows_past_its_size() -> None:
    line = Line(max_batch_size=3)
    for _ in range(5):
        line.add(2)
    assert len(line.step()) == 3
    assert len(line.step()) == 3
    assert len(line.scheduler.waiting) == 2


def test_nothing_overtakes_the_first_in_line_that_waits_for_blocks() -> None:
    line = Line(blocks=6)
    line.add(13)
    big, small = line.add([9] * 12), line.add([8])
    line.step()
    line.step()
    assert line.scheduler.waiting == [big, small]


def test_without_chunks_a_prompt_is_computed_whole_or_waits() -> None:
    line = Line(max_num_tokens=10, max_batch_size=2, chunked_prefill=False, reuse=False)
    first, second = line.add(6), line.add(6)
    assert line.step() == {first: 6}
    assert line.step() == {first: 1, second: 6}


def test_a_known_prefix_is_shared_but_the_last_token_is_always_computed() -> None:
    line = Line()
    line.add(8)
    line.step()
    again, longer, other = line.add(8), line.add(11), line.add([7, *range(1, 8)])
    counts = line.step()
    assert (counts[again], counts[longer], counts[other]) == (4, 3, 8)
    assert again.blocks[0] == longer.blocks[0] != other.blocks[0]
    assert (again.cached_tokens, longer.cached_tokens, other.cached_tokens) == (4, 8, 0)
    assert line.scheduler.prefix_hit_tokens == 12


def test_without_reuse_nothing_is_shared() -> None:
    line = Line(reuse=False)
    line.add(8)
    line.step()
    again = line.add(8)
    assert line.step()[again] == 8
    assert line.scheduler.pool.cached == 0


def test_the_last_in_line_gives_its_blocks_to_the_first_and_comes_back() -> None:
    line = Line(blocks=5, reuse=False)
    first, last = line.add([1] * 6), line.add([2] * 5)
    assert line.step() == {first: 6, last: 4}
    assert line.step() == {first: 1, last: 1}
    while last in line.scheduler.running:
        line.step()
    assert line.scheduler.preemptions == 1
    assert last.blocks == [] and line.scheduler.waiting == [last]
    produced = last.produced
    line.scheduler.remove(first)
    assert line.step() == {last: 4}, "what was thrown away is computed again"
    assert line.step() == {last: 1 + produced} and last.slot.single, "the answer as it was computed before: one by one"
    line.scheduler.remove(last)
    assert line.scheduler.pool.used == 0


def test_a_lower_priority_is_preempted_first_even_if_it_came_earlier() -> None:
    line = Line(blocks=5, reuse=False)
    low, high = line.add([1] * 6, priority=0), line.add([2] * 5, priority=1)
    while not line.scheduler.preemptions:
        line.step()
    assert low.blocks == [] and high.blocks


def test_a_request_that_could_never_fit_is_refused() -> None:
    line = Line(blocks=2)
    line.scheduler.check(Request("fits", [1] * 4, 5))
    with pytest.raises(RequestError, match="need 3 KV blocks of 4 tokens; the engine has 2"):
        line.scheduler.check(Request("too long", [1] * 4, 6))
