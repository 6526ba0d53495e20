"""Any mix of parameters, held to `transformers`' own processors in its own order: scores, what is kept, draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conch.engine.draw import best_of, draw
from conch.engine.noise import Noise
from conch.engine.sampling import Chooser
from tests.engine.test_sampling import VOCAB, adjusted, kept_by_transformers, random_logits, rows_of, sampler_of

torch = pytest.importorskip("torch")
from transformers.generation import logits_process as hf  # noqa: E402

tokens = st.integers(0, VOCAB - 1)
property_test = settings(max_examples=60, deadline=None, derandomize=True)


def processed(logits: np.ndarray, ids: list[int], *processors: Any) -> np.ndarray:
    scores = torch.tensor(logits)[None]
    for processor in processors:
        scores = processor(torch.tensor([ids]), scores)
    return np.asarray(scores[0].numpy())


# --- one processor at a time


@property_test
@given(st.dictionaries(tokens, st.floats(-100, 100, width=32), min_size=1, max_size=300), st.integers(0, 99))
@example({0: 100.0, VOCAB - 1: -100.0}, 1)
def test_logit_bias_is_a_sequence_bias_of_single_tokens(bias: dict[int, float], seed: int) -> None:
    logits = random_logits(seed)
    theirs = processed(logits, [1], hf.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}))
    np.testing.assert_array_equal(adjusted(sampler_of([1], [], logit_bias=bias), logits), theirs)


@property_test
@given(
    st.floats(0.05, 20),
    st.lists(tokens, min_size=1, max_size=40),
    st.lists(tokens, max_size=40),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
@example(0.5, [0, 0, 0], [0, 299], 1.0)
def test_repetition_penalty(penalty: float, prompt: list[int], answer: list[int], spread: float) -> None:
    logits = random_logits(len(prompt), spread)
    logits[prompt[0]] = 0.0
    theirs = processed(logits, prompt + answer, hf.RepetitionPenaltyLogitsProcessor(penalty))
    ours = adjusted(sampler_of(prompt, answer, repetition_penalty=penalty), logits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@property_test
@given(st.integers(0, 6), st.integers(0, 8), st.sets(tokens, min_size=0, max_size=3))
@example(3, 3, {7})
@example(3, 2, {0, VOCAB - 1})
@example(5, 0, set())
def test_min_tokens(least: int, produced: int, end_ids: set[int]) -> None:
    logits, prompt, answer = random_logits(produced), [1, 2, 3], [4] * produced
    ours = adjusted(sampler_of(prompt, answer, frozenset(end_ids), min_tokens=least), logits)
    if not end_ids:  # nothing ends the answer, so nothing is forbidden
        np.testing.assert_array_equal(ours, logits)
        return
    processor = hf.MinNewTokensLengthLogitsProcessor(len(prompt), least, sorted(end_ids))
    np.testing.assert_array_equal(ours, processed(logits, prompt + answer, processor))


few_tokens = st.lists(st.integers(0, 5), min_size=3, max_size=12)


@property_test
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=8), few_tokens, few_tokens)
@example([[3], [3, 3], [2, 3, 3]], [1, 1, 2], [3, 3, 3])
@example([[1, 2, 3, 4]], [0, 0, 1], [2, 3, 1])
def test_bad_words_end_in_prompt_or_answer(words: list[list[int]], prompt: list[int], answer: list[int]) -> None:
    logits = random_logits(len(words))
    ours = adjusted(sampler_of(prompt, answer, bad_words=tuple(map(tuple, words))), logits)
    theirs = processed(logits, prompt + answer, hf.NoBadWordsLogitsProcessor(words))
    np.testing.assert_array_equal(ours, theirs)


def test_a_bad_word_that_the_whole_context_begins_is_forbidden_though_transformers_looks_past_it() -> None:
    ours = adjusted(sampler_of([0], [1], bad_words=((0, 1, 2),)), random_logits(1))
    assert np.flatnonzero(np.isinf(ours)).tolist() == [2]


# --- all of them together


@st.composite
def mixes(draw: Any) -> dict[str, Any]:
    """Parameters of a request, each of them in every other one."""
    choices = {
        "logit_bias": st.dictionaries(tokens, st.floats(-20, 20, width=32), min_size=1, max_size=5),
        "repetition_penalty": st.floats(0.5, 3),
        "bad_words": st.lists(st.lists(tokens, min_size=1, max_size=2), min_size=1, max_size=5),
        "min_tokens": st.integers(1, 6),
        "top_k": st.sampled_from([1, 2, 20, VOCAB, 10 * VOCAB]),
        "top_p": st.sampled_from([1e-6, 0.3, 0.9, 0.999]),
        "min_p": st.sampled_from([1e-3, 0.1, 0.9, 1.0]),
    }
    mix = {name: draw(choice) for name, choice in choices.items() if draw(st.booleans())}
    mix["bad_words"] = tuple(map(tuple, mix.get("bad_words", ())))
    return {**mix, "temperature": draw(st.sampled_from([0.1, 0.7, 1.0, 3.0]))}


def by_transformers(logits: np.ndarray, ids: list[int], end_ids: list[int], mix: dict[str, Any]) -> np.ndarray:
    """Probabilities after the processors and warpers that `generate` would use, in its order."""
    processors: list[Any] = []
    if bias := mix.get("logit_bias"):
        processors.append(hf.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}))
    if penalty := mix.get("repetition_penalty"):
        processors.append(hf.RepetitionPenaltyLogitsProcessor(penalty))
    if words := mix["bad_words"]:
        processors.append(hf.NoBadWordsLogitsProcessor([list(word) for word in words]))
    if least := mix.get("min_tokens"):
        processors.append(hf.MinNewTokensLengthLogitsProcessor(3, least, end_ids))
    scores = processed(logits, ids, *processors)
    warpers = {"temperature": mix["temperature"], "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return np.asarray(kept_by_transformers(scores, **{name: mix.get(name, plain) for name, plain in warpers.items()}))


class OneNumber(Noise):
    """Noise that is one given number: what it draws is the token at that height of the cumulative distribution."""

    __slots__ = ("number",)

    def __init__(self, number: float) -> None:
        super().__init__(0, 0)
        self.number = number

    def one(self) -> float:
        return self.number


@pytest.mark.parametrize("top", [1, 16, VOCAB])
@property_test
@given(mixes(), st.integers(0, 999), st.floats(0.3, 8))
def test_the_token_at_any_height_of_the_distribution(top: int, mix: dict[str, Any], seed: int, spread: float) -> None:
    mix = {**mix, "top_k": mix.get("top_k", VOCAB)}  # whatever keeps every token is drawn by rejection: see below
    prompt, answer, end_ids = [5, 6, 7], [8, 9, 8], [9, 10]
    logits = random_logits(seed, spread)
    theirs = by_transformers(logits, prompt + answer, end_ids, mix)
    sampler = sampler_of(prompt, answer, frozenset(end_ids), **mix)
    order = np.argsort(-theirs, kind="stable")
    heights = np.cumsum(theirs[order])
    for number in np.random.default_rng(seed).random(20):
        if np.abs(heights - number).min() < 1e-5:
            continue  # float32 may round either way here
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("conch.engine.sampling.Noise", lambda *_, number=number: OneNumber(number))
            token = Chooser(rows_of(logits, top)).token(sampler, 0)
        assert theirs[token] == pytest.approx(theirs[order[np.searchsorted(heights, number)]], rel=1e-4)


@property_test
@given(mixes(), st.integers(0, 999))
def test_nothing_is_drawn_that_transformers_excludes_and_all_else_can_be(mix: dict[str, Any], seed: int) -> None:
    prompt, answer, end_ids = [5, 6, 7], [8], [9, 10]
    logits = random_logits(seed, 0.5)
    theirs = by_transformers(logits, prompt + answer, end_ids, mix)
    rows = rows_of(logits)
    drawn = {
        Chooser(rows).token(sampler_of(prompt, answer, frozenset(end_ids), seed=number, **mix), 0)
        for number in range(150)
    }
    assert all(theirs[token] > 0 for token in drawn)
    assert drawn >= set(np.flatnonzero(theirs > 0.15).tolist())


@property_test
@given(mixes(), st.integers(0, 999))
def test_a_greedy_request_takes_the_best_token_of_transformers_scores(mix: dict[str, Any], seed: int) -> None:
    logits = random_logits(seed)
    theirs = by_transformers(logits, [5, 6, 7, 8], [9, 10], {**mix, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
    sampler = sampler_of([5, 6, 7], [8], frozenset({9, 10}), **{**mix, "temperature": 0.0})
    assert Chooser(rows_of(logits)).token(sampler, 0) == theirs.argmax()


# --- edges


def test_equal_tokens_are_kept_or_not_as_transformers_does() -> None:
    logits = np.array([1.0] * 4 + [0.0] * 4 + [-50.0] * 4, np.float32)
    for params in ({"min_p": 1.0}, {"top_p": 0.5}, {"min_p": math.exp(-1) * 0.999}, {"top_k": 8}, {"top_p": 0.99}):
        wanted = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **params}
        kept = kept_by_transformers(logits, **wanted) > 0
        drawn = {draw(best_of(logits, 3), Noise(1, position), **wanted) for position in range(300)}
        assert len(drawn) == kept.sum(), params  # which of equals are kept is anyone's choice, how many is not
        assert {float(logits[token]) for token in drawn} == set(logits[kept].tolist())


@pytest.mark.parametrize("spread", [1e-4, 1.0, 50.0, 1e4])
def test_log_probabilities_are_log_softmax(spread: float) -> None:
    logits = random_logits(3, spread)
    theirs = torch.tensor(logits).double().log_softmax(-1)
    best = theirs.topk(20)
    ours, top = Chooser(rows_of(logits)).log_probs(0, 5, 20)
    assert ours == pytest.approx(float(theirs[5]), rel=1e-5, abs=1e-5)
    assert [token for token, _ in top] == best.indices.tolist()
    np.testing.assert_allclose([value for _, value in top], best.values.numpy(), rtol=1e-5, atol=1e-4)


@property_test
@given(st.floats(-2, 2), st.floats(-2, 2), st.lists(tokens, max_size=60))
def test_presence_and_frequency_penalties_follow_openais_formula(
    presence: float, frequency: float, answer: list[int]
) -> None:
    logits = random_logits(len(answer))
    ours = adjusted(sampler_of([1, 2], answer, presence_penalty=presence, frequency_penalty=frequency), logits)
    counts = np.bincount(answer, minlength=VOCAB)
    np.testing.assert_allclose(ours, logits - counts * frequency - (counts > 0) * presence, rtol=1e-5, atol=1e-5)


def test_without_end_ids_what_ends_other_answers_is_a_token_like_any_other() -> None:
    logits = random_logits(1)
    logits[9] = 50
    for min_tokens in (0, 5):
        sampler = sampler_of([1], [], frozenset(), temperature=0.0, min_tokens=min_tokens)
        assert Chooser(rows_of(logits)).token(sampler, 0) == 9
