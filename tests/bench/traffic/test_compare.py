"""Ratios, their intervals, and verdicts."""

from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from conch.bench.traffic.compare import FASTER, SAME, SLOWER, UNCLEAR, compare, verdict, worst
from conch.bench.traffic.statistics import Ratio, paired_ratio, t_cdf, t_quantile
from conch_build.errors import InputError

POSITIVE = st.floats(0.1, 1000)


@given(st.floats(-50, 50), st.integers(1, 200))
def test_students_distribution_is_scipys(t: float, freedom: int) -> None:
    assert t_cdf(t, freedom) == pytest.approx(scipy.stats.t.cdf(t, freedom), abs=1e-9)


@given(st.floats(0.75, 0.9995), st.integers(1, 200))
def test_students_quantiles_are_scipys(share: float, freedom: int) -> None:
    assert t_quantile(share, freedom) == pytest.approx(scipy.stats.t.ppf(share, freedom), rel=1e-6)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=20))
def test_the_interval_is_scipys_of_paired_logarithms(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    logs = [math.log(other) - math.log(one) for one, other in pairs]
    found = paired_ratio(a, b, 0.95)
    test = scipy.stats.ttest_rel([math.log(x) for x in b], [math.log(x) for x in a])
    low, high = test.confidence_interval(0.95)
    assert found.ratio == pytest.approx(scipy.stats.gmean([math.exp(log) for log in logs]))
    if scipy.stats.tstd(logs) > 1e-6:
        assert math.log(found.low or 0) == pytest.approx(low, abs=1e-6)
        assert math.log(found.high or 0) == pytest.approx(high, abs=1e-6)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=10))
def test_sides_that_change_places_have_the_inverse_ratio(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    there, back = paired_ratio(a, b, 0.9), paired_ratio(b, a, 0.9)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert (there.low or 0) * (back.high or 0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.10, 1.20, FASTER),
        (0.80, 0.90, SLOWER),
        (0.985, 1.015, SAME),
        (1.001, 1.015, SAME),
        (1.001, 1.05, FASTER),
        (0.95, 1.10, UNCLEAR),
    ],
)
def test_a_verdict_follows_from_the_interval(low: float, high: float, word: str) -> None:
    assert verdict(Ratio(1.0, low, high, 5), True, within=0.02) == word


def test_less_latency_is_faster() -> None:
    assert verdict(Ratio(0.8, 0.7, 0.9, 5), False, within=0.02) == FASTER


def test_a_single_pair_settles_nothing() -> None:
    assert verdict(paired_ratio([1.0], [2.0], 0.95), True, within=0.02) == UNCLEAR


def test_of_several_verdicts_the_worst_counts() -> None:
    assert worst([FASTER, SLOWER, UNCLEAR]) == SLOWER
    assert worst([FASTER, UNCLEAR]) == UNCLEAR
    assert worst([SAME, FASTER]) == FASTER
    assert worst([SAME, SAME]) == SAME


def test_only_what_both_sides_know_is_compared() -> None:
    one = {"8 at once": {"tokens_per_second": 100.0, "ttft_p50_ms": None, "goodput_per_second": 0.0}}
    (found,) = compare([(one, one), (one, one)], 0.02, 0.95)
    assert (found.load, found.metric, found.verdict) == ("8 at once", "tokens_per_second", SAME)


def test_sides_without_a_common_load_are_refused() -> None:
    with pytest.raises(InputError, match="no load in common"):
        compare([({"1 at once": {}}, {"2 at once": {}})], 0.02, 0.95)
