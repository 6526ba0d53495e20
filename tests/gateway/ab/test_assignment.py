"""Callers get variants by weight, and keep them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.ab.assignment import assigned, point

CALLERS = [f"user-{number}" for number in range(4000)]


@given(st.text(), st.text())
def test_a_caller_has_one_place_and_one_variant(experiment: str, caller: str) -> None:
    assert 0 <= point(experiment, caller) < 1
    weights = {"a": 1.0, "b": 2.0, "c": 0.5}
    assert assigned(experiment, caller, weights) == assigned(experiment, caller, weights)


@pytest.mark.parametrize("weights", [{"a": 90, "b": 10}, {"a": 0.2, "b": 0.3, "c": 0.5}])
def test_variants_get_their_share(weights: dict[str, float]) -> None:
    chosen = [assigned("one", caller, weights) for caller in CALLERS]
    for name, weight in weights.items():
        assert abs(chosen.count(name) / len(CALLERS) - weight / sum(weights.values())) < 0.03


def test_when_the_second_variant_grows_nobody_leaves_it() -> None:
    before = {caller for caller in CALLERS if assigned("one", caller, {"a": 90, "b": 10}) == "b"}
    after = {caller for caller in CALLERS if assigned("one", caller, {"a": 50, "b": 50}) == "b"}
    assert before < after


@given(st.text(), st.sampled_from([{"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0, "b": 0.1, "c": 0}]))
def test_a_weight_of_nothing_gets_nobody(caller: str, weights: dict[str, float]) -> None:
    assert weights[assigned("one", caller, weights)] > 0


def test_experiments_do_not_share_their_callers() -> None:
    halves = {"a": 1, "b": 1}
    same = sum(assigned("one", caller, halves) == assigned("two", caller, halves) for caller in CALLERS)
    assert abs(same / len(CALLERS) - 0.5) < 0.03


def test_somebody_must_get_the_requests() -> None:
    with pytest.raises(ValueError, match="every weight is 0"):
        assigned("one", "me", {"a": 0, "b": 0})
