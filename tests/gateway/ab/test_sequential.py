"""The verdict may be read after every observation and is still wrong no more often than it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.ab.sequential import LEAST, Moments, difference


def moments(values: np.ndarray) -> Moments:
    kept = Moments()
    for value in values:
        kept = kept.plus(float(value))
    return kept


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_moments_are_those_of_the_observations(values: list[float]) -> None:
    kept = moments(np.array(values))
    assert kept.count == len(values)
    assert kept.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert kept.variance == pytest.approx(np.var(values, ddof=1), rel=1e-6, abs=1e-3)


@given(st.lists(st.floats(-1e3, 1e3), max_size=20), st.lists(st.floats(-1e3, 1e3), max_size=20))
def test_moments_kept_apart_add_up(left: list[float], right: list[float]) -> None:
    both, whole = moments(np.array(left)).merged(moments(np.array(right))), moments(np.array(left + right))
    assert both.count == whole.count
    assert both.mean == pytest.approx(whole.mean, abs=1e-9)
    assert both.spread == pytest.approx(whole.spread, rel=1e-9, abs=1e-6)


def first_certain(draws: np.ndarray, alpha: float) -> int | None:
    """After how many pairs of observations a reader who looks after each of them would have stopped."""
    one, two = Moments(), Moments()
    for number, (left, right) in enumerate(draws, 1):
        one, two = one.plus(float(left)), two.plus(float(right))
        found = difference(one, two, alpha=alpha)
        if found is not None and found.is_certain:
            return number
    return None


def test_of_equal_variants_few_are_ever_told_apart() -> None:
    random = np.random.default_rng(1)
    wrong = [first_certain(random.gamma(2.0, 50.0, size=(500, 2)), 0.05) for _ in range(200)]
    assert sum(found is not None for found in wrong) / len(wrong) <= 0.06


def test_a_real_difference_is_found_and_its_bounds_hold_it() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        draws = random.normal([100.0, 90.0], 20.0, size=(2000, 2))
        stopped = first_certain(draws, 0.05)
        assert stopped is not None
        found = difference(moments(draws[:, 0]), moments(draws[:, 1]))
        assert found is not None and found.low <= -10 <= found.high < 0


def test_bounds_narrow_as_observations_come() -> None:
    random = np.random.default_rng(3)
    draws = random.normal(0.0, 1.0, size=(5000, 2))
    widths = []
    for count in (50, 500, 5000):
        found = difference(moments(draws[:count, 0]), moments(draws[:count, 1]))
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[0] > widths[1] > widths[2]


def test_few_observations_and_equal_ones_tell_nothing() -> None:
    few, many = moments(np.arange(LEAST - 1)), moments(np.arange(LEAST * 2))
    assert difference(few, many) is None
    assert difference(many, few) is None
    same = moments(np.ones(LEAST))
    assert difference(same, same) is None
