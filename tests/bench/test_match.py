"""A match goes on without a side that fails, and leaves no process behind."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from conch.bench.contests import Contest
from conch.bench.match import Match, play
from conch.bench.report import contest_text, sides_text, verdicts
from conch.bench.sides import Facts, Library, Process, Side, address_polled
from conch.bench.workloads import REPEAT, SHORT, Texts, tiny
from conch_build.errors import DeadlineError, ServiceError, SetupError

TEXTS = Texts(["some words"] * 4, lambda text: [len(word) for word in text.split()])
TOY = Path(__file__).with_name("toy_driver.py")
FACTS = Facts("toy", "as it is", weight_bytes=1_000_000, kv_bytes_per_token=100, most_at_once=8)


def toy(folder: Path, fate: str = "none", most_at_once: int = 8) -> Side:
    process = Process([sys.executable, str(TOY), fate], folder / f"{fate}.log")
    return Library(dataclasses.replace(FACTS, most_at_once=most_at_once), process)


def missing() -> Side:
    raise SetupError("is not installed", where="peer", fix="Install it.")


def matched(folder: Path, peer: str = "none", **fates: str) -> Match:
    makers = {"peer": partial(toy, folder, peer), **{name: partial(toy, folder, fate) for name, fate in fates.items()}}
    return play("peer", makers, [tiny(SHORT), tiny(REPEAT)], [1, 2], 3, TEXTS, lambda text: None)


def test_every_side_has_all_rounds_of_every_cell(tmp_path: Path) -> None:
    match = matched(tmp_path, int8="none")
    cells = {key: [len(cell.rounds) for cell in cells] for key, cells in match.cells.items()}
    one = {("peer", "short", 1): [3], ("peer", "short", 2): [3], ("peer", "repeat", 1): [3, 3]}
    assert cells == one | {("int8", name, level): rounds for (_, name, level), rounds in one.items()}
    assert not match.failures
    assert match.entrants["int8"].resident_bytes > 1_000_000


@pytest.mark.parametrize(("fate", "reason"), [("start", "no such model"), ("job", "out of memory")])
def test_a_side_that_dies_is_left_out_with_its_last_words(tmp_path: Path, fate: str, reason: str) -> None:
    match = matched(tmp_path, int8="none", int4=fate)
    assert reason in match.failures["int4"] and f"{fate}.log" in match.failures["int4"]
    assert ("int8", "repeat", 1) in match.cells
    assert reason in sides_text(match)


def test_without_its_peer_a_match_is_over(tmp_path: Path) -> None:
    match = matched(tmp_path, peer="job", int8="none")
    assert match.failures.keys() == {"peer"} and not match.cells


def test_a_peer_that_is_not_installed_costs_nothing(tmp_path: Path) -> None:
    match = play("peer", {"peer": missing, "int8": partial(toy, tmp_path)}, [SHORT], [1], 1, TEXTS, lambda text: None)
    assert match.failures == {"peer": "peer: is not installed. Install it."}
    assert not match.entrants


def test_a_side_for_one_stream_is_asked_for_no_more(tmp_path: Path) -> None:
    makers = {"peer": partial(toy, tmp_path, most_at_once=1), "int4": partial(toy, tmp_path)}
    match = play("peer", makers, [tiny(SHORT)], [1, 8], 1, TEXTS, lambda text: None)
    assert {level for _, _, level in match.cells} == {1}


def test_nothing_runs_on_afterwards(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    matched(tmp_path, int8="none", int4="job")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_row_shows_both_sides_their_ratio_and_the_roofline(tmp_path: Path) -> None:
    match = matched(tmp_path, int8="none")
    contest = Contest("int8", "peer", {1: 0.9, 2: 1.5})
    text = contest_text(contest, match, [tiny(SHORT), tiny(REPEAT)], bandwidth=1e9)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    # 8 tokens in 0.5 s; a step of 10 ms reads 1 MB and a cache of 100 tokens of 100 bytes: a tenth of 1 GB/s.
    assert rows[2] == "1 16 : 16 1.00 1.00 0.9 reached 10 : 10 ms 10.0 : 10.0 ms 10 : 10 ms 10% : 10%"
    assert "missed" in rows[3]
    assert "int8 100 10 ms 10.0 ms 1.00 1.00 20.0 missed" in rows


def test_a_verdict_is_data_too(tmp_path: Path) -> None:
    match = matched(tmp_path, int8="none")
    found = verdicts(Contest("int8", "peer", {1: 0.9, 2: 1.5}), match, [tiny(SHORT), tiny(REPEAT)])
    rows = [(row["workload"], row["concurrency"], row["best_ratio"], row["reached"]) for row in found]
    assert rows == [("short", 1, 1.0, True), ("short", 2, 1.0, False), ("repeat", 1, 1.0, False)]


def test_a_quick_run_judges_nothing(tmp_path: Path) -> None:
    match = matched(tmp_path, int8="none")
    text = contest_text(Contest("int8", "peer", {1: 9.0}), match, [tiny(SHORT)], bandwidth=1e9, judged=False)
    assert "missed" not in text and "9.0" not in text


def test_a_server_that_dies_at_its_start_is_told_at_once(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "import sys; sys.exit('address already in use')"], tmp_path / "log")
    process.start()
    with pytest.raises(ServiceError, match="address already in use"):
        address_polled("http://127.0.0.1:9")(process, 30)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    process.start()
    with pytest.raises(DeadlineError, match="not ready within 1 s"):
        address_polled("http://127.0.0.1:9")(process, 1)
    process.stop()
    assert process.dead
