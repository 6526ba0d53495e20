"""The search: the plan's own settings first, what is hopeless given up, and nothing that was found lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conch.tuning.climb import Climb, Row
from conch.tuning.space import Setting, Values
from conch.tuning.study import OnLevel, Study, alone_in, best_of, folder_of
from conch.tuning.verdict import LOAD, Verdict, in_turns
from conch_build.errors import CheckError, InputError, ServiceError
from conch_build.plan import Slo

SPACE = [Setting("engine.max_batch_size", (4, 8, 16, 32), 8), Setting("engine.threads", ("auto", 1, 2), "auto")]
SLO = Slo.model_validate({"ttft_p95": "100ms", "itl_p95": "50ms"})


def row(speed: float, ttft: float = 50.0, level: int = 1) -> Row:
    met = ttft <= 100
    return {
        "load": f"{level} at once",
        "concurrency": level,
        "tokens_per_second": speed,
        "slo_met": met,
        "good_share": float(met),
        "ttft_p95_ms": ttft,
        "tpot_p95_ms": 10.0,
    }


class Machine:
    """Faster with larger batches; its calls are counted."""

    def __init__(self, ttft: float = 50.0) -> None:
        self.asked: list[Values] = []
        self.ttft = ttft

    def __call__(self, values: Values, on_level: OnLevel) -> Climb:
        self.asked.append(values)
        rows = []
        for number, level in enumerate((1, 4)):
            rows.append(row(float(values["engine.max_batch_size"]) * level, self.ttft, level))
            if not rows[-1]["slo_met"] or not on_level(number, rows[-1]):
                break
        return Climb(rows)


def searched(folder: Path, machine: Any, trials: int = 12) -> Study:
    study = Study(folder / "study.log", SPACE, SLO, seed=0)
    study.search(machine, trials, 60, lambda text: None)
    return study


def test_the_plans_own_settings_are_measured_first_and_better_ones_are_found(tmp_path: Path) -> None:
    machine = Machine()
    tried = searched(tmp_path, machine).tried()
    assert tried[0].values == {"engine.max_batch_size": 8, "engine.threads": "auto"}
    best = best_of(tried, SLO)
    assert best.values["engine.max_batch_size"] == 32 and best.row == row(128.0, level=4)


def test_what_falls_behind_the_others_is_given_up_before_its_last_level(tmp_path: Path) -> None:
    assert "behind" in {one.outcome for one in searched(tmp_path, Machine(), 16).tried()}


def test_a_later_run_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    searched(tmp_path, Machine(), 5)
    again = Machine()
    assert len(searched(tmp_path, again, 7).tried()) == 7
    assert len(again.asked) == 2


def test_what_was_cut_off_is_measured_again_the_plans_own_settings_too(tmp_path: Path) -> None:
    def killed(values: Values, on_level: OnLevel) -> Climb:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, killed)
    machine = Machine()
    searched(tmp_path, machine, 1)
    assert machine.asked == [{"engine.max_batch_size": 8, "engine.threads": "auto"}]


def test_settings_that_a_check_refuses_or_no_server_starts_with_do_not_end_the_search(tmp_path: Path) -> None:
    machine = Machine()

    def picky(values: Values, on_level: OnLevel) -> Climb:
        if values["engine.threads"] == 1:
            raise CheckError("no", [])
        if values["engine.threads"] == 2:
            raise ServiceError("does not start")
        return machine(values, on_level)

    tried = searched(tmp_path, picky, 8).tried()
    assert {"kept", "refused", "failed"} <= {one.outcome for one in tried}
    assert sum(one.outcome != "refused" for one in tried) == 8
    assert best_of(tried, SLO).values["engine.threads"] == "auto"


def test_a_plan_that_does_not_start_as_it_is_ends_the_search(tmp_path: Path) -> None:
    def broken(values: Values, on_level: OnLevel) -> Climb:
        raise ServiceError("does not start")

    with pytest.raises(ServiceError, match="does not start"):
        searched(tmp_path, broken)


def test_an_slo_that_nothing_keeps_is_one_sentence_with_the_nearest(tmp_path: Path) -> None:
    tried = searched(tmp_path, Machine(ttft=400.0), 4).tried()
    assert {one.outcome for one in tried} == {"broken"}
    words = r"slo: none of 4 settings keeps it, even at 1 at once; .* TTFT p95 400.0 ms \(asked: 100 ms\)"
    with pytest.raises(InputError, match=words):
        best_of(tried, SLO)


def test_two_searches_of_one_question_do_not_run_at_once_and_another_question_has_its_own_place(tmp_path: Path) -> None:
    place = folder_of(tmp_path, "m", {"load": 1})
    assert place == folder_of(tmp_path, "m", {"load": 1}) != folder_of(tmp_path, "m", {"load": 2})
    with alone_in(place), pytest.raises(InputError, match="another `conch tune`"), alone_in(place):
        pass


def turned(own: list[Row], best: list[Row]) -> tuple[Verdict, list[str]]:
    order = []

    def side(name: str, rows: list[Row]) -> Any:
        def measure(number: int) -> Row:
            order.append(name)
            return rows[number]

        return measure

    return in_turns(side("own", own), side("best", best), len(own)), order


def test_both_sides_are_measured_in_turns_and_a_gain_has_its_interval() -> None:
    verdict, order = turned([row(100.0), row(101.0), row(99.0)], [row(150.0), row(151.0), row(150.0)])
    assert order == ["own", "best", "best", "own", "own", "best"]
    ratio = verdict.throughput.ratio
    assert verdict.throughput.load == LOAD and ratio.low and ratio.low > 1.4 and verdict.proven


def test_a_gain_that_may_be_chance_or_that_breaks_the_slo_is_not_proven() -> None:
    chance, _ = turned([row(100.0), row(130.0), row(90.0)], [row(120.0), row(95.0), row(110.0)])
    assert not chance.proven
    late, _ = turned([row(100.0), row(101.0)], [row(200.0, ttft=300.0), row(201.0, ttft=300.0)])
    assert late.throughput.verdict == "faster" and not late.kept and not late.proven


def test_settings_that_alone_keep_the_slo_are_better_at_any_speed() -> None:
    verdict, _ = turned([row(200.0, ttft=300.0), row(201.0, ttft=300.0)], [row(90.0), row(92.0)])
    assert verdict.proven
