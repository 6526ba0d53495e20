"""What tokens cost: the parts add up to the whole, and each formula agrees with its meaning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch_build.cost import (
    MILLION,
    MONTH_HOURS,
    Price,
    Work,
    break_even_share,
    break_even_tokens_per_hour,
    return_on,
    token_cost,
    usd_per_million,
)
from conch_build.errors import InputError

seconds = st.floats(0, 1e6)
tokens = st.integers(0, 10**9)
usd = st.floats(0.001, 1e4)
prices = st.builds(Price, usd, st.integers(1, 64))
works = st.builds(Work, seconds, seconds, tokens, tokens, tokens)


def test_an_hour_costs_the_hourly_price_of_every_instance() -> None:
    assert Price(2.5).usd(3600) == 2.5
    assert Price(2.5, instances=4).usd(1800) == 5.0
    assert Price(2.5).monthly_usd == 2.5 * MONTH_HOURS


def test_a_million_tokens_cost_a_million_times_one() -> None:
    assert usd_per_million(2.0, 500_000) == 4.0
    assert usd_per_million(2.0, 0) is None


@given(price=prices, first=seconds, second=seconds)
def test_time_is_paid_once_however_it_is_cut(price: Price, first: float, second: float) -> None:
    assert price.usd(first + second) == pytest.approx(price.usd(first) + price.usd(second))


@given(price=prices, work=works, weight=st.floats(0, 1))
def test_tokens_times_their_costs_are_the_whole_cost(price: Price, work: Work, weight: float) -> None:
    cost = token_cost(price, work, cached_weight=weight)
    parts = [
        (cost.computed, work.computed_tokens),
        (cost.cached, work.cached_tokens),
        (cost.generated, work.generated_tokens),
    ]
    borne = sum(a_million * count / MILLION for a_million, count in parts if a_million is not None)
    prompts = price.usd(work.prefill_seconds) if work.computed_tokens or work.cached_tokens else 0.0
    answers = price.usd(work.decode_seconds) if work.generated_tokens else 0.0
    assert borne == pytest.approx(prompts + answers)
    assert cost.usd == pytest.approx(price.usd(work.busy_seconds))
    assert (cost.any is None) == (work.tokens == 0)


def test_prefill_and_decode_are_charged_apart_and_cached_tokens_are_free() -> None:
    cost = token_cost(Price(3.6), Work(100, 300, 1_000_000, 500_000, 200_000))
    assert cost.computed == pytest.approx(0.1)
    assert cost.cached == 0
    assert cost.generated == pytest.approx(1.5)
    assert cost.usd == pytest.approx(0.4)


def test_a_cached_token_may_cost_a_share_of_a_computed_one() -> None:
    cost = token_cost(Price(3.6), Work(100, 0, 1_000_000, 1_000_000, 0), cached_weight=0.25)
    assert cost.computed == pytest.approx(0.08)
    assert cost.cached == pytest.approx(0.02)


def test_prompts_that_were_all_cached_bear_their_own_time() -> None:
    assert token_cost(Price(3.6), Work(100, 0, 0, 1_000_000, 0)).cached == pytest.approx(0.1)


@given(first=works, second=works)
def test_work_adds_up(first: Work, second: Work) -> None:
    both = first + second
    assert both.tokens == first.tokens + second.tokens
    assert both.busy_seconds == pytest.approx(first.busy_seconds + second.busy_seconds)


@given(price=prices, a_million=usd, rate=st.floats(0.1, 1e6))
def test_at_the_break_even_share_own_tokens_cost_what_bought_ones_do(
    price: Price, a_million: float, rate: float
) -> None:
    made = break_even_share(price, a_million, rate) * rate * 3600
    assert made == pytest.approx(break_even_tokens_per_hour(price, a_million))
    assert price.usd(3600) / made * MILLION == pytest.approx(a_million)


@given(before=usd, after=usd, monthly=st.floats(0, 1e12), once=usd, months=st.floats(0.1, 120))
def test_a_change_has_paid_back_when_its_return_is_zero(
    before: float, after: float, monthly: float, once: float, months: float
) -> None:
    found = return_on(before, after, monthly, once, months=months)
    if found.payback_months is None:
        assert found.saved_usd_a_month <= 0
    elif found.payback_months < 1e6:
        at_payback = return_on(before, after, monthly, once, months=found.payback_months)
        assert at_payback.roi == pytest.approx(0, abs=1e-6)
    assert (found.roi or 0) >= -1 or found.saved_usd_a_month < 0


def test_a_quantization_that_halves_the_cost() -> None:
    found = return_on(2.0, 1.0, 500 * MILLION, 1_000, months=12)
    assert (found.saved_usd_a_month, found.payback_months, found.roi) == (500, 2, 5)
    assert return_on(2.0, 1.0, MILLION, 0).payback_months == 0
    assert return_on(1.0, 2.0, MILLION, 100).payback_months is None


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_impossible_prices_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="a price an hour"):
        Price(wrong)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="an instance"):
        Price(1.0, instances=0)
    with pytest.raises(InputError, match="a million tokens is above 0"):
        break_even_tokens_per_hour(Price(1.0), 0)
    with pytest.raises(InputError, match="throughput is above 0"):
        break_even_share(Price(1.0), 1.0, 0)
    with pytest.raises(InputError, match="not below 0"):
        return_on(-1, 1, 1, 1)
