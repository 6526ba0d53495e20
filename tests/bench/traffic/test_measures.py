"""Figures out of requests: percentiles, rates, goodput, shares, cost."""

from __future__ import annotations

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from conch.bench.traffic.busy import work_of
from conch.bench.traffic.measures import SHARES, Round, Terms, measures, spread
from conch.bench.traffic.record import Record
from conch.bench.traffic.slo import Limits, limits_of, parse_limits
from conch_build.cost import Price
from conch_build.errors import InputError
from conch_build.plan import Slo
from tests.bench.traffic.conftest import answered

FAILED = Record(0, "m", 0.0, ended=0.1, error="overloaded")
SPANS = st.tuples(st.floats(0, 50), st.floats(0.01, 5), st.floats(0.01, 5))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_percentiles_are_scipys(values: list[float]) -> None:
    found = spread(values)
    for name, share in SHARES.items():
        assert found[name] == pytest.approx(scipy.stats.scoreatpercentile(values, share), rel=1e-9, abs=1e-9)
    assert found["mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_nothing_measured_is_none_and_no_number() -> None:
    assert set(spread([]).values()) == {None}


def test_rates_count_tokens_over_the_time_by_the_clock() -> None:
    row = measures([Round([answered(0, 0.5, 1.0), answered(0, 1.0, 2.0)], 2.0, own_seconds=0.1)], Terms())
    assert (row["tokens_per_second"], row["input_tokens_per_second"], row["requests_per_second"]) == (2, 10, 1)
    assert row["generator_cpu_share"] == 0.05


def test_rounds_are_taken_together() -> None:
    one, other = Round([answered(0, 0.1)], 1.0), Round([answered(0, 0.3), answered(0, 0.3)], 2.0)
    row = measures([one, other], Terms())
    assert (row["requests"], row["seconds"], row["requests_per_second"]) == (3, 3.0, 1.0)
    assert row["ttft_p50_ms"] == pytest.approx(300)


def test_errors_are_counted_by_kind_and_have_no_latency() -> None:
    row = measures([Round([FAILED, FAILED, answered(0, 0.1)], 1.0)], Terms())
    assert row["errors"] == {"overloaded": 2}
    assert (row["answered"], row["e2e_p99_ms"]) == (1, pytest.approx(100))


def test_goodput_counts_what_kept_every_limit_and_no_failures() -> None:
    slow_first, slow_tokens, good = answered(0, 0.3, 0.31), answered(0, 0.05, 0.5), answered(0, 0.05, 0.06)
    limits = parse_limits("ttft=100ms,itl=50ms")
    row = measures([Round([slow_first, slow_tokens, good, FAILED], 2.0)], Terms(limits))
    assert (row["goodput_per_second"], row["good_share"], row["slo_met"]) == (0.5, 0.25, False)


def test_a_client_that_leaves_is_not_held_against_the_slo() -> None:
    left = answered(0, 0.05)
    left.cancelled = True
    row = measures([Round([left, answered(0, 0.05)], 1.0)], Terms(Limits({"ttft": 0.1})))
    assert (row["cancelled"], row["good_share"], row["slo_met"]) == (1, 1.0, True)


def test_a_plans_slo_is_taken_over() -> None:
    assert limits_of(Slo(ttft_p95="100ms", itl_p95="50ms")) == parse_limits("ttft=100ms,itl=50ms")
    assert limits_of(Slo()) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ttft=0ms", "no answer comes within no time"),
        ("speed=1s", "'speed' is no limit"),
        ("ttft=5", "needs a number and a unit"),
        ("ttft=2s,e2e=1s", "cannot come before its first token"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_limits(text)


@given(st.lists(SPANS, min_size=1, max_size=12))
def test_shares_of_busy_time_add_up_to_it(spans: list[tuple[float, float, float]]) -> None:
    records = [answered(start, start + first, start + first + rest) for start, first, rest in spans]
    covered, reached = 0.0, 0.0
    for record in sorted(records, key=lambda record: record.sent):
        covered += max(record.ended - max(record.sent, reached), 0)
        reached = max(reached, record.ended)
    assert work_of(records).busy_seconds == pytest.approx(covered)


def test_two_that_run_at_once_share_the_time() -> None:
    work = work_of([answered(0, 2.0, 4.0), answered(0, 4.0, 4.0)])
    assert (work.prefill_seconds, work.decode_seconds) == (3.0, 1.0)


def test_a_million_tokens_cost_what_the_busy_time_costs() -> None:
    row = measures([Round([answered(0, 1800.0, 3600.0)], 3600.0)], Terms(price=Price(3.6)))
    assert row["usd"] == pytest.approx(3.6)
    assert row["usd_per_million_generated"] == pytest.approx(1.8 / 2 * 1e6)


def test_hits_are_told_by_usage_else_by_the_servers_counters() -> None:
    told = answered(0, 1.0)
    told.cached_tokens, told.draft_tokens, told.accepted_tokens = 5, 8, 6
    grown = {"hit_tokens": 30.0, "prompt_tokens": 40.0}
    row = measures([Round([told], 1.0, counted=grown)], Terms())
    assert (row["prefix_hit_share"], row["draft_acceptance"]) == (0.5, 0.75)
    row = measures([Round([answered(0, 1.0)], 1.0, counted=grown)], Terms())
    assert (row["prefix_hit_share"], row["draft_acceptance"]) == (0.75, None)


def test_energy_is_left_out_where_a_round_does_not_know_it() -> None:
    known, unknown = Round([answered(0, 1.0)], 1.0, joules=7.0), Round([answered(0, 1.0)], 1.0)
    assert measures([known, known], Terms())["joules_per_token"] == 7
    assert measures([known, unknown], Terms())["joules"] is None
