"""Which tokens a step computes: pure decisions, no thread and no model."""

from __future__ import annotations

from typing import Any

import pytest

from conch.engine import EngineConfig, Request, SamplingParams
from conch.engine.scheduler import CHUNK, SLICE, Batch, Scheduler
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
    assert line.step() == {first: 6}
    assert line.step() == {first: 1, second: 6, third: 1}
    assert line.step() == {first: 1, second: 1, third: 1}


@pytest.mark.parametrize("length", [300, 320, 321, 33, 1, 2])
def test_a_prompt_is_cut_where_it_makes_no_difference_whoever_else_is_served(length: int) -> None:
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
            if past + count < length:
                assert (past + count) % SLICE == 0
            else:
                assert count > 1 or length % SLICE == 1
                assert prompt.slot.single == (length % SLICE == 1)


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
    assert line.step() == {**dict.fromkeys(readers, 1), long: SLICE}


def test_a_prompt_adds_no_more_to_a_step_than_the_readers_already_do() -> None:
    line = Line(max_num_tokens=2048, max_batch_size=128)
    readers = [line.add([n + 1]) for n in range(100)]
    while not all(reader.produced for reader in readers):
        line.step()
    long = line.add(2000)
    assert line.step()[long] == 3 * SLICE


def test_a_crowd_of_prompts_is_not_held_up_by_one_reader() -> None:
    line = Line(max_num_tokens=2048, reuse=False)
    reader = line.add(1)
    line.step()
    for _ in range(5):
        line.add(200)
    counts = line.step()
    assert counts.pop(reader) == 1
    assert sum(counts.values()) == 4 * CHUNK, "as many as a step takes"


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
    assert line.step() == {first: 6, last: 5}
    while last in line.scheduler.running:
        line.step()
    assert line.scheduler.preemptions == 1
    assert last.blocks == [] and line.scheduler.waiting == [last]
    produced = last.produced
    line.scheduler.remove(first)
    assert line.step() == {last: 5}, "what was thrown away is computed again"
    assert line.step() == {last: produced} and last.slot.single, "the answer as it was computed before: one by one"
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
