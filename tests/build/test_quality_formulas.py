"""Perplexity, agreement and divergence of next-token distributions: held to SciPy and to what must be true of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conch_build.errors import InputError
from conch_build.quality import CHUNK, TOP, FullRows, TopRows
from conch_build.quality.formulas import (
    divergence,
    least_divergence,
    log_softmax,
    perplexity,
    ratio_interval,
)
from conch_build.quality.rows import compare

scipy_special = pytest.importorskip("scipy.special")

VOCABULARY = 40
logits = arrays(np.float32, (3, VOCABULARY), elements=st.floats(-30, 30, width=32))


@given(logits)
def test_log_softmax_is_scipys(rows: np.ndarray) -> None:
    np.testing.assert_allclose(
        log_softmax(rows), scipy_special.log_softmax(rows.astype(np.float64), axis=-1), atol=1e-9
    )


@given(logits, logits)
def test_divergence_is_the_sum_of_scipys_relative_entropy(a: np.ndarray, b: np.ndarray) -> None:
    p, q = log_softmax(a), log_softmax(b)
    expected = scipy_special.rel_entr(np.exp(p), np.exp(q)).sum(-1)
    np.testing.assert_allclose(divergence(p, q), expected, rtol=1e-6, atol=1e-9)


@given(logits, logits)
def test_divergence_is_never_negative_and_nothing_from_itself(a: np.ndarray, b: np.ndarray) -> None:
    assert (divergence(log_softmax(a), log_softmax(b)) >= 0).all()
    assert divergence(log_softmax(a), log_softmax(a)) == pytest.approx(0, abs=1e-12)


def test_only_a_token_that_the_build_excludes_makes_the_divergence_infinite() -> None:
    even, sure = np.log([[0.5, 0.5]]), np.array([[0.0, -np.inf]])
    assert divergence(even, sure)[0] == math.inf
    assert divergence(sure, even)[0] == pytest.approx(math.log(2))


@settings(max_examples=200)
@given(logits, logits, st.integers(1, VOCABULARY))
def test_what_the_likeliest_tokens_tell_is_never_more_than_the_divergence(
    a: np.ndarray, b: np.ndarray, count: int
) -> None:
    p, q = log_softmax(a), log_softmax(b)
    for row in range(len(p)):
        bound, unseen = least_divergence(top(p[row], count), top(q[row], count))
        assert bound <= divergence(p, q)[row] + 1e-4
        assert 0 <= unseen <= 1


@given(logits, logits)
def test_with_every_token_known_the_bound_is_the_divergence(a: np.ndarray, b: np.ndarray) -> None:
    p, q = log_softmax(a), log_softmax(b)
    bound, unseen = least_divergence(top(p[0], VOCABULARY), top(q[0], VOCABULARY))
    assert bound == pytest.approx(divergence(p, q)[0], abs=1e-4)
    assert unseen == pytest.approx(0, abs=1e-6)


@given(st.integers(1, 1000))
def test_the_perplexity_of_an_even_guess_is_the_number_of_choices(choices: int) -> None:
    assert perplexity(np.full(7, -math.log(choices))) == pytest.approx(choices)


def test_the_interval_holds_the_ratio_in_95_of_100_samples() -> None:
    rng = np.random.default_rng(0)
    true, hits = math.exp(0.05), 0
    for _ in range(400):
        baseline = rng.normal(-3, 2, 500)
        low, high = ratio_interval(baseline, baseline - rng.normal(0.05, 0.3, 500))
        hits += low <= true <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_the_same_model_agrees_with_itself_whole_or_told_by_its_likeliest_tokens() -> None:
    rows = some_rows(0)
    for baseline, build in ((rows, rows), (rows.as_top(), rows), (rows.as_top(), rows.as_top())):
        found = compare([baseline], [build])
        assert (found.perplexity_ratio, found.agreement) == (1, 1)
        assert found.kl == pytest.approx(0, abs=1e-9)


def test_a_server_and_an_engine_give_the_same_figures_but_for_the_bound_of_the_divergence() -> None:
    base, build = some_rows(0), some_rows(1)
    whole, told = compare([base], [build]), compare([base.as_top()], [build.as_top()])
    assert (told.perplexity, told.baseline_perplexity) == pytest.approx((whole.perplexity, whole.baseline_perplexity))
    assert told.agreement == whole.agreement
    assert whole.kl_exact and not told.kl_exact
    assert told.kl is not None and whole.kl is not None and told.kl_unseen is not None
    assert 0 < told.kl <= whole.kl and told.kl_unseen > 0


def test_without_a_baseline_only_perplexity_is_told() -> None:
    found = compare(None, [some_rows(0)])
    assert found.perplexity > 1
    assert (found.perplexity_ratio, found.agreement, found.kl) == (None, None, None)


def test_models_that_tell_of_other_positions_or_have_other_vocabularies_are_not_compared() -> None:
    rows = some_rows(0)
    other = TopRows((1, 2), np.array([-1.0, -1.0]), ({1: -1.0}, {2: -1.0}))
    with pytest.raises(InputError, match="the same positions"):
        compare([rows], [other])
    with pytest.raises(InputError, match="the same positions"):
        compare([rows, rows], [rows])
    with pytest.raises(InputError, match="vocabularies of 99 and 100 tokens"):
        compare([rows], [FullRows(rows.tokens, rows.logits[:, :99])])
    with pytest.raises(InputError, match="no two tokens"):
        compare([], [])


def some_rows(seed: int) -> FullRows:
    """Positions of a model; those of another seed lie near."""
    shared = np.random.default_rng(7).normal(0, 3, (CHUNK, 100))
    own = np.random.default_rng(seed).normal(0, 0.5, shared.shape)
    tokens = np.random.default_rng(8).integers(0, 99, CHUNK)
    return FullRows(tuple(tokens.tolist()), (shared + own).astype(np.float32))


def top(row: np.ndarray, count: int) -> dict[int, float]:
    return {int(token): float(row[token]) for token in np.argsort(-row)[:count]}


def test_a_told_row_has_the_likeliest_tokens_in_order_and_the_one_that_came() -> None:
    for token, known, row in zip(some_rows(0).tokens, some_rows(0).as_top().top, some_rows(0).all, strict=True):
        assert list(known)[:TOP] == np.argsort(-row, kind="stable")[:TOP].tolist()
        assert token in known
