"""Choosing tokens: adjustments against `transformers`' own processors, draws against their distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from conch.engine import Rows, SamplingParams
from conch.engine.draw import Candidates, best_of, draw
from conch.engine.noise import Noise
from conch.engine.sampling import Chooser, Sampler, Top
from conch_build.errors import ConchError, RequestError

VOCAB = 300
NEVER = -math.inf


def rows_of(logits: np.ndarray, top: int = 16) -> Rows:
    logits = np.atleast_2d(logits).astype(np.float32)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    return Rows(ids, np.take_along_axis(logits, ids, axis=1), logits)


@dataclass
class Picks:
    tokens: list[int] = field(default_factory=list)
    log_probs: dict[int, tuple[float, Top]] = field(default_factory=dict)
    errors: dict[int, ConchError] = field(default_factory=dict)


def choose(rows: Rows, samplers: list[Sampler]) -> Picks:
    """What each request gets from its row of one step."""
    chooser, picks = Chooser(rows), Picks()
    for row, sampler in enumerate(samplers):
        try:
            picks.tokens.append(chooser.token(sampler, row))
        except ConchError as error:
            picks.errors[row] = error
            picks.tokens.append(-1)
            continue
        if sampler.params.log_probs or sampler.params.top_log_probs:
            picks.log_probs[row] = chooser.log_probs(row, picks.tokens[row], sampler.params.top_log_probs)
    return picks


def random_logits(seed: int, spread: float = 3.0, vocab: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def sampler_of(prompt: list[int], answer: list[int], end_ids: frozenset[int] = frozenset(), **params: Any) -> Sampler:
    tokens = list(prompt)
    sampler = Sampler(SamplingParams(**params), tokens, end_ids)
    for token in answer:
        tokens.append(token)
        sampler.observe(token)
    return sampler


def adjusted(sampler: Sampler, logits: np.ndarray) -> np.ndarray:
    row = logits.copy()
    sampler._adjust(row)
    return row


def kept_by_transformers(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Probabilities after transformers' warpers, in its order."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    scores = torch.tensor(logits)[None]
    warpers = [hf.TemperatureLogitsWarper(temperature)]
    if top_k:
        warpers.append(hf.TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(hf.TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(hf.MinPLogitsWarper(min_p))
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(-1)[0].double().numpy()


def frequencies(logits: np.ndarray, draws: int, top: int = 16, **params: Any) -> np.ndarray:
    [row] = rows_of(logits).logits
    candidates = best_of(row, top)
    counts = np.zeros(len(row))
    for position in range(draws):
        counts[draw(candidates, Noise(11, position), **params)] += 1
    return counts


def agree(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square at one in ten thousand; rare tokens are pooled, impossible ones must not appear."""
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities / probabilities.sum() * counts.sum()
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    keep = wanted > 0
    if keep.sum() > 1:
        assert chisquare(observed[keep], wanted[keep] * observed.sum() / wanted[keep].sum()).pvalue > 1e-4


# --- adjustments


def test_repetition_penalty_is_that_of_transformers_over_prompt_and_answer() -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import RepetitionPenaltyLogitsProcessor

    logits, prompt, answer = random_logits(1), [3, 5, 5, 9], [7, 7, 3]
    ours = adjusted(sampler_of(prompt, answer, repetition_penalty=1.3), logits)
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + answer]), torch.tensor(logits)[None])
    np.testing.assert_array_equal(ours, theirs[0].numpy())


def test_presence_and_frequency_penalties_count_the_answer_alone() -> None:
    logits = random_logits(2)
    ours = adjusted(sampler_of([3, 5], [7, 7, 3], presence_penalty=0.5, frequency_penalty=0.25), logits)
    expected = logits.copy()
    expected[7] -= 0.5 + 2 * 0.25
    expected[3] -= 0.5 + 0.25
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_a_long_answer_is_counted_in_full() -> None:
    answer = np.random.default_rng(0).integers(0, VOCAB, 2000).tolist()
    ours = adjusted(sampler_of([1], answer, frequency_penalty=0.01), np.zeros(VOCAB, np.float32))
    np.testing.assert_allclose(ours, -0.01 * np.bincount(answer, minlength=VOCAB), atol=1e-5)


def test_bad_words_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import NoBadWordsLogitsProcessor

    logits, words = random_logits(3), ((4,), (8, 9), (1, 8, 11), (2, 8, 12))
    ours = adjusted(sampler_of([6, 1], [8], bad_words=words), logits)
    theirs = NoBadWordsLogitsProcessor([list(word) for word in words])(
        torch.tensor([[6, 1, 8]]), torch.tensor(logits)[None]
    )
    np.testing.assert_array_equal(ours, theirs[0].numpy())
    assert np.flatnonzero(np.isinf(ours)).tolist() == [4, 9, 11]


def test_end_ids_are_forbidden_until_min_tokens() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[5], logits[6] = 9, 8
    rows = rows_of(logits)
    params = {"temperature": 0.0, "min_tokens": 2}
    for answer, expected in (([], 6), ([1], 6), ([1, 1], 5)):
        assert choose(rows, [sampler_of([1], answer, frozenset({5}), **params)]).tokens == [expected]


def test_logit_bias_and_embedding_bias_are_added() -> None:
    logits, bias = random_logits(4), random_logits(5)
    ours = adjusted(sampler_of([1], [], logit_bias={3: 2.5, 7: -100.0}, embedding_bias=bias), logits)
    expected = logits + bias
    expected[3] += 2.5
    expected[7] -= 100
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_a_mask_of_minus_infinity_leaves_only_what_it_allows() -> None:
    mask = np.full(VOCAB, NEVER, np.float32)
    mask[[17, 201]] = 0
    sampler = sampler_of([1], [], embedding_bias=mask, temperature=5.0)
    assert {choose(rows_of(random_logits(seed)), [sampler]).tokens[0] for seed in range(30)} == {17, 201}


def test_forbidding_everything_is_that_requests_own_error() -> None:
    every = tuple((token,) for token in range(VOCAB))
    for temperature in (0.0, 1.0):
        picks = choose(
            rows_of(np.stack([random_logits(6), random_logits(7)])),
            [
                sampler_of([1], [], bad_words=every, temperature=temperature),
                sampler_of([1], [], temperature=0.0),
            ],
        )
        assert isinstance(picks.errors[0], RequestError) and list(picks.errors) == [0]
        assert picks.tokens[1] == random_logits(7).argmax()


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e-38, "frequency_penalty": 3e38},
        {"embedding_bias": np.full(VOCAB, 3.4e38, np.float32), "logit_bias": {1: 3.4e38}},
    ],
)
def test_parameters_that_overflow_are_that_requests_own_error(params: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        sampler = sampler_of([1, 2, 3], [3], temperature=temperature, **params)
        picks = choose(rows_of(np.stack([random_logits(6) * 100] * 2)), [sampler, sampler_of([1], [])])
        assert isinstance(picks.errors[0], RequestError) and list(picks.errors) == [0]


def test_logits_that_are_not_numbers_end_only_their_own_request() -> None:
    logits = np.stack([np.full(VOCAB, np.nan), random_logits(8)])
    picks = choose(rows_of(logits), [sampler_of([1], [], temperature=0.0)] * 2)
    assert list(picks.errors) == [0] and picks.tokens[1] == random_logits(8).argmax()


def test_adjustments_never_touch_the_runners_own_rows() -> None:
    rows = rows_of(random_logits(9))
    before = rows.logits.copy()
    sampler = sampler_of([1, 2], [3], repetition_penalty=2.0, bad_words=((4,),), logit_bias={5: 50.0})
    assert choose(rows, [sampler]).tokens == [5]
    np.testing.assert_array_equal(rows.logits, before)


# --- drawing


@pytest.mark.parametrize("top", [1, 16, VOCAB])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.4},
        {"temperature": 30.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 2.0, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 4.0, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 3.0, "min_p": 0.02},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_draws_follow_the_distribution_of_transformers(params: dict[str, Any], top: int) -> None:
    logits = random_logits(12)
    given = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **params}
    agree(frequencies(logits, 4000, top, **params), kept_by_transformers(logits, **given))


def test_what_is_kept_is_exactly_what_transformers_keeps() -> None:
    rng = np.random.default_rng(3)
    for seed in range(40):
        logits = random_logits(seed, spread=float(rng.uniform(0.5, 5)))
        params = {
            "temperature": float(rng.uniform(0.2, 3)),
            "top_k": int(rng.choice([0, 3, 50])),
            "top_p": float(rng.choice([0.3, 0.8, 0.95])),
            "min_p": float(rng.choice([0.0, 0.05, 0.3])),
        }
        kept = kept_by_transformers(logits, **params) > 0
        drawn = frequencies(logits, 150, int(rng.integers(1, 40)), **params) > 0
        assert not (drawn & ~kept).any()


def test_rejection_from_a_large_vocabulary_reaches_the_tokens_behind_the_candidates() -> None:
    logits = random_logits(13, spread=2.0, vocab=20_000)
    logits[:30] += 8
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum()
    counts = frequencies(logits, 6000, top=64, temperature=1.0)
    agree(counts, probabilities)
    behind = np.sort(probabilities)[:-64].sum()
    assert behind > 0.1 and abs(counts[np.argsort(probabilities)[:-64]].sum() / 6000 - behind) < 0.02


def test_draws_after_penalties_follow_the_adjusted_distribution() -> None:
    logits = random_logits(14)
    params = {"logit_bias": {250: 8.0, int(logits.argmax()): -50.0}, "frequency_penalty": -2.0}
    sampler = sampler_of([1], [40, 40], seed=5, **params)
    row = adjusted(sampler, logits)
    rows = rows_of(logits)
    counts = np.zeros(VOCAB)
    for seed in range(3000):
        counts[choose(rows, [sampler_of([1], [40, 40], seed=seed, **params)]).tokens[0]] += 1
    agree(counts, np.exp(row.astype(np.float64)))


def test_ties_at_the_edge_of_the_candidates_can_still_be_drawn() -> None:
    logits = np.zeros(50, np.float32)
    assert (frequencies(logits, 2000, top=8, temperature=1.0) > 0).all()


def test_a_temperature_near_zero_is_greedy_and_a_huge_one_is_flat_without_overflow() -> None:
    logits = random_logits(15, spread=100.0)
    with np.errstate(over="raise", invalid="raise"):
        for temperature in (1e-9, 1e-5, 1e-3):
            assert choose(rows_of(logits), [sampler_of([1], [], temperature=temperature)]).tokens == [logits.argmax()]
        assert frequencies(logits, 400, temperature=999_999.0).max() < 10


# --- seeds


def test_a_seed_gives_the_same_token_in_any_company() -> None:
    logits = np.stack([random_logits(seed) for seed in range(8)])
    alone = [choose(rows_of(row), [sampler_of([1], [2], seed=9, top_p=0.95)]).tokens[0] for row in logits]
    together = choose(rows_of(logits), [sampler_of([1], [2], seed=9, top_p=0.95) for _ in logits]).tokens
    assert alone == together


def test_positions_seeds_and_unseeded_requests_all_draw_differently() -> None:
    rows = rows_of(np.zeros(VOCAB, np.float32))
    by_position = {choose(rows, [sampler_of([1], [2] * n, seed=9)]).tokens[0] for n in range(40)}
    by_seed = {choose(rows, [sampler_of([1], [], seed=seed)]).tokens[0] for seed in range(-20, 20)}
    unseeded = {choose(rows, [sampler_of([1], [])]).tokens[0] for _ in range(40)}
    assert min(len(by_position), len(by_seed), len(unseeded)) > 25


def test_noise_is_uniform_and_reads_the_same_one_by_one_or_at_once() -> None:
    together = Noise(2**64 - 1, 3).many(20_000)
    one_by_one = Noise(2**64 - 1, 3)
    assert [one_by_one.one() for _ in range(50)] == together[:50].tolist()
    assert one_by_one.many(50).tolist() == together[50:100].tolist()
    assert chisquare(np.histogram(together, bins=50, range=(0, 1))[0]).pvalue > 1e-4
    first = [Noise(seed, position).one() for seed in range(100) for position in range(100)]
    assert chisquare(np.histogram(first, bins=50, range=(0, 1))[0]).pvalue > 1e-4


# --- log probabilities


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@pytest.mark.parametrize("top", [1, 16, 64])
def test_log_probabilities_are_of_the_models_own_distribution(top: int, count: int) -> None:
    logits = random_logits(16)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sampler = sampler_of([1], [2], temperature=0.0, logit_bias={77: 100.0}, log_probs=True, top_log_probs=count)
    picks = choose(rows_of(logits, top), [sampler])
    log_prob, best = picks.log_probs[0]
    assert picks.tokens == [77] and log_prob == pytest.approx(exact[77], abs=1e-5)
    assert [token for token, _ in best] == np.argsort(-logits, kind="stable")[:count].tolist()
    assert [value for _, value in best] == pytest.approx(np.sort(exact)[::-1][:count].tolist(), abs=1e-5)


def test_log_probabilities_are_given_only_to_those_who_asked() -> None:
    rows = rows_of(np.stack([random_logits(1), random_logits(2)]))
    picks = choose(rows, [sampler_of([1], []), sampler_of([1], [], log_probs=True)])
    assert list(picks.log_probs) == [1]


def test_candidates_without_a_floor_are_all_there_is() -> None:
    row = random_logits(17)
    candidates = Candidates(np.array([4]), row[[4]], NEVER, row)
    assert draw(candidates, Noise(1, 1), temperature=1.0) == 4
