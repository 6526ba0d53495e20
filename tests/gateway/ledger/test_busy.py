"""The shared clock of an engine's busy time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.gateway.ledger.busy import ShareClock


def test_a_request_alone_has_all_of_the_time_before_and_after_its_first_token() -> None:
    clock = ShareClock()
    share = clock.start(10.0)
    share.first_token(10.5)
    assert share.end(12.0) == (0.5, 1.5)
    assert clock.busy_seconds == 2.0


def test_nobody_pays_for_idle_time() -> None:
    clock = ShareClock()
    clock.start(0.0).end(1.0)
    share = clock.start(100.0)
    assert share.end(101.0) == (1.0, 0.0)
    assert clock.busy_seconds == 2.0


def test_two_requests_share_the_time_that_both_run() -> None:
    clock = ShareClock()
    first = clock.start(0.0)
    first.first_token(1.0)
    second = clock.start(1.0)
    second.first_token(2.0)
    assert second.end(3.0) == (0.5, 0.5)
    assert first.end(4.0) == (1.0, 2.0)


def test_a_request_for_several_answers_weighs_as_much_as_so_many_requests() -> None:
    clock = ShareClock()
    one, three = clock.start(0.0), clock.start(0.0, answers=3)
    assert sum(three.end(4.0)) == 3.0
    assert sum(one.end(4.0)) == 1.0


def test_of_several_engines_as_many_are_busy_as_there_are_answers() -> None:
    clock = ShareClock(engines=2)
    first = clock.start(0.0)
    second, third = clock.start(1.0), clock.start(2.0)
    assert sum(third.end(5.0)) == 2.0  # three answers share two engines for three seconds
    assert sum(second.end(5.0)) == 3.0
    assert sum(first.end(6.0)) == 5.0
    assert clock.busy_seconds == 10.0


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 10), st.floats(0, 10), st.integers(1, 8), st.booleans()),
        min_size=1,
        max_size=30,
    ),
)
def test_shares_add_up_to_the_busy_time_whoever_comes_and_goes(
    engines: int, runs: list[tuple[float, float, float, int, bool]]
) -> None:
    events = []
    for index, (start, prefill, decode, _, has_token) in enumerate(runs):
        events += [(start, 0, index), (start + prefill + decode, 2, index)]
        if has_token:
            events.append((start + prefill, 1, index))
    clock, shares, total, busy, running, last = ShareClock(engines), {}, 0.0, 0.0, 0, 0.0
    for now, kind, index in sorted(events):
        busy += (now - last) * min(engines, running)
        last, answers = now, runs[index][3]
        if kind == 0:
            shares[index] = clock.start(now, answers)
            running += answers
        elif kind == 1:
            shares[index].first_token(now)
        else:
            prefill, decode = shares[index].end(now)
            assert min(prefill, decode) >= -1e-9
            total += prefill + decode
            running -= answers
    assert total == pytest.approx(clock.busy_seconds, abs=1e-6)
    assert clock.busy_seconds == pytest.approx(busy, abs=1e-6)
