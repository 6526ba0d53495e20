"""How fast a line moves, and how much requests take."""

from __future__ import annotations

import pytest

from conch.gateway.admission.pace import Pace, Usual


def test_only_the_time_in_which_somebody_waits_counts() -> None:
    pace = Pace()
    assert pace.seconds_for(100) is None
    pace.left(50, now=0.0)
    assert pace.seconds_for(100) is None
    pace.begin(now=10.0)
    pace.left(50, now=11.0)
    pace.pause()
    pace.left(1, now=500.0)
    pace.begin(now=1000.0)
    pace.left(50, now=1001.0)
    assert pace.seconds_for(100) == pytest.approx(2.0)


def test_the_latest_counts_most() -> None:
    pace = Pace()
    pace.begin(now=0.0)
    for second in range(1, 101):
        pace.left(10, now=float(second))
    for second in range(101, 201):
        pace.left(1000, now=float(second))
    assert pace.seconds_for(1000) == pytest.approx(1.0, rel=0.05)


def test_an_answer_is_reckoned_whole_until_some_were_seen_and_then_with_twice_the_usual() -> None:
    usual = Usual()
    assert usual.reckoned(10, 4000, 1) == 4010
    for _ in range(100):
        usual.saw(10, 0, 50)
    assert usual.reckoned(10, 4000, 1) == 110
    assert usual.reckoned(10, 4000, 3) == 310
    assert usual.reckoned(10, 20, 1) == 30


def test_of_prompts_that_begin_alike_only_what_is_new_is_reckoned() -> None:
    usual = Usual()
    for _ in range(100):
        usual.saw(2000, 1900, 50)
    assert usual.reckoned(2000, 100, 1) == pytest.approx(200, abs=15)
    for _ in range(100):
        usual.saw(2000, 0, 50)
        usual.saw(0, 0, 50)
    assert usual.reckoned(2000, 100, 1) == pytest.approx(2100, abs=15)
