"""Speculation changes how fast answers come, never what they are."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from conch.engine import Request, Rows, SamplingParams, Slot
from conch.engine.drafters import ModelDrafter, NgramDrafter
from conch.engine.ngrams import NgramIndex
from conch.engine.payoff import RECHECK_STEPS, TRIAL_STEPS, Payoff, lengths_up_to
from conch.engine.speculation import Drafter, Speculation
from tests.engine.conftest import MakeEngine, ask
from tests.engine.test_engine import alone, random_requests, request, settled
from tests.engine.toy_runner import ToyRunner

BLOCKS = 400


class HalfRight(ToyRunner):
    """A draft that knows the target, and is wrong whenever a token and its place add up to a multiple of three."""

    def step(self, slots: Sequence[Slot]) -> Rows | None:
        rows = super().step(slots)
        if rows is None:
            return None
        wrong = [(slot.tokens[-1] + slot.past) % 3 == 0 for slot in slots]
        ids = np.where(np.array(wrong)[:, None], np.roll(rows.top_ids, 1, axis=1), rows.top_ids)
        return Rows(ids, rows.top_logits, rows.logits)


def stranger() -> ToyRunner:
    """A draft that has nothing in common with the target but its vocabulary."""
    runner = ToyRunner(num_blocks=BLOCKS)
    runner._head = np.random.default_rng(3).integers(0, 1 << 63, runner.vocab_size, np.uint64)
    return runner


def always(drafter: Drafter, length: int) -> Speculation:
    """Speculation that asks for guesses whether they pay or not."""
    speculation = Speculation(drafter, length)
    speculation._payoff.length = lambda sequences: length  # type: ignore[method-assign]
    return speculation


DRAFTERS: dict[str, Any] = {
    "perfect": lambda blocks: ModelDrafter(ToyRunner(num_blocks=blocks)),
    "half right": lambda blocks: ModelDrafter(HalfRight(num_blocks=blocks)),
    "hopeless": lambda blocks: ModelDrafter(stranger()),
    "ngram": lambda blocks: NgramDrafter(3),
}


@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize(("blocks", "reuse"), [(BLOCKS, True), (60, True), (60, False)])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_answers_are_the_same_with_and_without(
    make_engine: MakeEngine, kind: str, blocks: int, reuse: bool, length: int
) -> None:
    """Greedy or sampled, with penalties, stop words and end ids, short of blocks or not."""
    engine = make_engine(
        ToyRunner(num_blocks=blocks, max_num_tokens=48),
        always(DRAFTERS[kind](blocks), length),
        max_num_tokens=48,
        reuse=reuse,
    )
    requests = random_requests(30, seed=length)
    answers = [ask(engine, each) for each in requests]
    for each, answer in zip(requests, answers, strict=True):
        assert answer.wait().tokens == alone(list(each.prompt), each.max_tokens, each.sampling)
        assert len(answer.tokens) == answer.usage.completion_tokens
    stats = engine.stats()
    assert settled(engine)
    assert stats.draft_tokens_total == sum(answer.usage.draft_tokens for answer in answers)
    assert stats.accepted_tokens_total == sum(answer.usage.accepted_tokens for answer in answers)
    if kind != "ngram":
        assert stats.draft_tokens_total > 0 and stats.draft_seconds_total > 0


def test_a_perfect_draft_is_taken_whole_and_saves_steps(make_engine: MakeEngine) -> None:
    engine = make_engine(speculation=always(ModelDrafter(ToyRunner()), 4), max_batch_size=1)
    greedy = SamplingParams(temperature=0.0, end_ids=frozenset())
    for sampling in (greedy, SamplingParams(seed=5, top_p=0.7, top_k=8, end_ids=frozenset())):
        before = engine.stats().steps_total
        answer = ask(engine, Request(f"{sampling.seed}", [1, 2, 3], 51, sampling)).wait()
        assert answer.usage.accepted_tokens == answer.usage.draft_tokens == 40
        assert engine.stats().steps_total - before == 1 + 50 / 5, "the first token comes with the prompt"


def test_a_draft_draws_as_the_target_does_though_it_knows_its_candidates_only(make_engine: MakeEngine) -> None:
    """Both are the same model here: a guess is wrong only where the target draws a token behind the candidates."""
    taken = []
    for top in (3, 40):
        engine = make_engine(ToyRunner(top=top), always(ModelDrafter(ToyRunner(top=top)), 1))
        answer = ask(engine, Request("a", [1, 2, 3], 100, SamplingParams(seed=5, end_ids=frozenset()))).wait()
        taken.append(answer.usage.accepted_tokens / answer.usage.draft_tokens)
    assert 0.2 < taken[0] < taken[1] and taken[1] > 0.9


def test_a_draft_is_never_longer_than_what_may_still_be_sent(make_engine: MakeEngine) -> None:
    engine = make_engine(speculation=always(ModelDrafter(ToyRunner()), 4))
    for length in range(1, 12):
        answer = ask(engine, request(str(length), [5, 6], length)).wait()
        assert answer.tokens == alone([5, 6], length)
        assert answer.usage.accepted_tokens == answer.usage.draft_tokens <= max(0, length - 1)


def test_stops_inside_accepted_tokens_end_the_answer_there(make_engine: MakeEngine) -> None:
    engine = make_engine(speculation=always(ModelDrafter(ToyRunner()), 6))
    whole = alone([9, 8, 7], 32, SamplingParams(temperature=0.0, end_ids=frozenset()))
    for cut in range(1, 30):
        word = tuple(whole[cut : cut + 2])
        for length in (cut + 1, cut + 2, 32):
            sampling = SamplingParams(temperature=0.0, end_ids=frozenset(), stop_words=(word,), top_log_probs=2)
            plain = make_engine()
            expected = ask(plain, Request("a", [9, 8, 7], length, sampling)).wait()
            plain.close()
            answer = ask(engine, Request(f"{cut}-{length}", [9, 8, 7], length, sampling)).wait()
            assert (answer.tokens, answer.reason) == (expected.tokens, expected.reason)
            scores = [score for output in answer.outputs for score in output.log_probs or ()]
            assert scores == [score for output in expected.outputs for score in output.log_probs or ()]
            assert len(scores) == len(answer.tokens)


def test_a_draft_catches_up_with_what_it_did_not_follow(make_engine: MakeEngine) -> None:
    """The first steps are plain: the draft then has to compute what was written meanwhile."""

    class Late(Speculation):
        def guess(self, scheduler: Any, decoding: Any) -> None:
            if decoding and decoding[0].produced > 20:
                super().guess(scheduler, decoding)

    engine = make_engine(speculation=Late(ModelDrafter(ToyRunner()), 4), max_batch_size=1)
    answer = ask(engine, request("a", [1, 2, 3], 60)).wait()
    assert answer.tokens == alone([1, 2, 3], 60)
    assert answer.usage.accepted_tokens == answer.usage.draft_tokens > 25


def test_sampled_tokens_keep_the_targets_distribution(make_engine: MakeEngine) -> None:
    """Over many seeds, with a draft of another distribution: the same counts as without it would give."""
    from scipy.stats import chi2_contingency

    counts = []
    for speculation in (None, always(ModelDrafter(stranger()), 3)):
        engine = make_engine(ToyRunner(num_blocks=BLOCKS), speculation, max_batch_size=64, max_num_tokens=512)
        params = {"temperature": 0.9, "top_k": 6, "end_ids": frozenset[int]()}
        offset = 0 if speculation is None else 100_000  # other seeds: the same ones would give the same answers
        answers = [
            ask(engine, Request(str(n), [4, 2], 3, SamplingParams(seed=n + offset, **params))) for n in range(1000)
        ]
        counts.append(np.bincount([answer.wait().tokens[2] for answer in answers], minlength=61))
    table = np.array(counts)[:, np.sum(counts, axis=0) > 10]
    assert chi2_contingency(table).pvalue > 1e-3


def test_several_answers_to_one_prompt_each_have_their_own_draft(make_engine: MakeEngine) -> None:
    plain = make_engine()
    engine = make_engine(speculation=always(ModelDrafter(HalfRight()), 4))
    sampling = SamplingParams(seed=1, end_ids=frozenset())
    answers = [ask(each, Request("a", [1, 2, 3], 20, sampling, n=4)).wait() for each in (plain, engine)]
    assert [answers[0].of(index) for index in range(4)] == [answers[1].of(index) for index in range(4)]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])
def test_several_answers_to_one_prompt_are_guessed_as_well_as_one(make_engine: MakeEngine, prompt: list[int]) -> None:
    engine = make_engine(speculation=always(ModelDrafter(ToyRunner(top=61)), 4))
    sampling = SamplingParams(seed=1, top_p=0.7, top_k=8, end_ids=frozenset())
    answer = ask(engine, Request("a", prompt, 21, sampling, n=4)).wait()
    usages = [output.usage for output in answer.outputs if output.usage]
    assert len(usages) == 4 and all(usage.accepted_tokens == usage.draft_tokens == 16 for usage in usages)


# --- when it pays


Speeds = dict[int, tuple[int, float]]
"""Length -> tokens and seconds of a step that guesses so many."""

WINS: Speeds = {0: (1, 0.01), 1: (2, 0.015), 2: (3, 0.018), 4: (3, 0.03)}
LOSES: Speeds = {0: (1, 0.01), 1: (1, 0.012), 2: (1, 0.014), 4: (1, 0.02)}


def play(payoff: Payoff, steps: int, speeds: Speeds, n: int = 1) -> dict[int, float]:
    """Run steps; returns the share that each length had of them."""
    used = dict.fromkeys(speeds, 0)
    for _ in range(steps):
        length = payoff.length(n)
        payoff.record(n, length, *speeds[length])
        used[length] += 1
    return {length: count / steps for length, count in used.items()}


def test_what_loses_is_switched_off_and_tried_again_now_and_then() -> None:
    payoff = Payoff(4)
    shares = play(payoff, 8000, LOSES)
    assert payoff.best == 0 and shares[0] > 0.95
    assert all(0 < shares[length] < TRIAL_STEPS / RECHECK_STEPS for length in (1, 2, 4))


def test_the_length_that_pays_most_is_found_and_found_again_when_it_changes() -> None:
    payoff = Payoff(4)
    assert play(payoff, 2000, WINS)[2] > 0.9 and payoff.best == 2
    play(payoff, 6000, LOSES)
    assert payoff.best == 0
    play(payoff, 6000, WINS)
    assert payoff.best == 2


@pytest.mark.parametrize(
    ("longest", "lengths"), [(1, [1, 0]), (3, [3, 0, 1, 2]), (4, [4, 0, 1, 2]), (6, [6, 0, 1, 2, 4])]
)
def test_the_longest_none_and_powers_of_two_between_are_tried(longest: int, lengths: list[int]) -> None:
    assert lengths_up_to(longest) == lengths


def test_each_size_of_the_batch_has_its_own_verdict() -> None:
    payoff = Payoff(4)
    play(payoff, 200, WINS, n=1)
    play(payoff, 200, LOSES, n=16)
    assert (payoff.length(1), payoff.length(16)) == (2, 0)
    assert "16 at once: 0 100 tok/s" in str(payoff)


def test_one_slow_step_changes_no_verdict() -> None:
    payoff = Payoff(4)
    play(payoff, 100, WINS)
    payoff.record(1, 2, 1, 5.0)
    assert payoff.length(1) == 2


def test_a_draft_that_only_costs_time_is_switched_off_visibly(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow:
        def guess(self, sequences: Any, rooms: Any) -> None:
            time.sleep(0.004)

        def follow(self, batch: Any) -> None:
            pass

    slow: Drafter = Slow()
    caplog.set_level("INFO", logger="conch.engine")
    engine = make_engine(speculation=Speculation(slow, 4))
    ask(engine, request("a", [1, 2], 100)).wait()
    assert not engine.stats().speculating
    assert "speculation guesses no tokens now" in caplog.text


# --- n-grams


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    index = NgramIndex(3)
    text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 1, 2, 3]
    assert index.continuation(text, 2) == [4, 9], "1 2 3 stood there"
    assert index.continuation([*text, 7, 2, 3], 3) == [7, 2, 3], "2 3 last stood before 7"
    assert index.continuation([*text, 7, 2, 3, 8], 2) == []


def test_looking_up_gives_what_a_search_of_the_whole_text_gives() -> None:
    rng = random.Random(4)
    text = [rng.randrange(4)]
    index = NgramIndex(3)
    for _ in range(300):
        text.append(rng.randrange(4))
        assert index.continuation(text, 3) == searched(text, 3, 3)


def searched(text: list[int], longest: int, count: int) -> list[int]:
    for size in range(longest, 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return text[start + size : start + size + count]
    return []
