"""Ratios, what shall be reached, and the turns that sides take."""

from __future__ import annotations

import dataclasses

import pytest

from conch.bench.contests import Cell, Contest, contests, judge, judge_repeat, turns
from conch.bench.figures import Figures
from conch.bench.tuning import score

ROUND = Figures(8, 8, 1.0, 100.0, 50.0, 60.0, 10.0, 12.0, 15.0)


def cell(*rates: float, ttft: float = 50.0) -> Cell:
    return Cell(tuple(dataclasses.replace(ROUND, tokens_per_second=rate, ttft_p50_ms=ttft) for rate in rates))


def test_the_best_rounds_decide_and_the_medians_stand_beside() -> None:
    verdict = judge(Contest("int8", "peer", {8: 1.5}), 8, cell(100, 150, 90), cell(100, 50, 60))
    assert verdict.best_ratio == 1.5
    assert verdict.median_ratio == pytest.approx(100 / 60)
    assert (verdict.least, verdict.reached, verdict.word) == (1.5, True, "reached")


def test_a_ratio_just_below_is_missed() -> None:
    assert judge(Contest("int8", "peer", {8: 1.5}), 8, cell(149), cell(100)).word == "missed"


def test_where_nothing_is_demanded_nothing_is_judged() -> None:
    verdict = judge(Contest("int8", "peer", {8: 1.5}), 64, cell(100), cell(200))
    assert (verdict.best_ratio, verdict.least, verdict.word) == (0.5, None, "")


@pytest.mark.parametrize(("ttft", "reached"), [(50.0, True), (50.1, False)])
def test_the_first_token_may_not_come_later_than_the_peers(ttft: float, reached: bool) -> None:
    contest = Contest("bf16", "peer", ttft_not_higher=True)
    assert judge(contest, 64, cell(900, ttft=ttft), cell(100, ttft=50.0)).reached is reached


def test_a_repeat_is_judged_by_its_first_token() -> None:
    assert judge_repeat(cell(1, 1, ttft=1000), cell(1, 1, ttft=50)).word == "reached"
    assert judge_repeat(cell(1, 1, ttft=1000), cell(1, 1, ttft=51)).word == "missed"


def test_every_peer_is_met_and_vllm_by_bf16_and_the_best_format() -> None:
    met = [(contest.peer, contest.ours) for contest in contests("int4")]
    assert met == [("vllm", "bf16"), ("vllm", "int4"), ("openvino-genai", "int8"), ("llama.cpp", "int4")]


def test_each_round_begins_with_another_side() -> None:
    assert [turns(["a", "b"], n) for n in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert [turns(["a", "b", "c"], n)[0] for n in range(4)] == ["a", "b", "c", "a"]


def test_tuning_weighs_every_concurrency_the_same() -> None:
    assert score([10, 1000]) == pytest.approx(score([100, 100]))
    assert score([20, 1000]) > score([10, 1100])
