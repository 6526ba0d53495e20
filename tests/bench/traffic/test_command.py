"""`conch bench` and `conch bench compare` as a person runs them, on a server of known timing."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
SHORT = ("--max-tokens", "10", "--concurrency", "2", "--rounds", "1")


@pytest.fixture(scope="module")
def toy() -> Iterator[str]:
    """50 ms to the first token, 10 ms between tokens."""
    command = [sys.executable, "-m", "conch.bench.traffic.toy", "0.05", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(scope="module")
def slower() -> Iterator[str]:
    command = [sys.executable, "-m", "conch.bench.traffic.toy", "0.10", "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def saved(run: Run, url: str, path: Path, *options: str) -> dict[str, Any]:
    code, _, told = run("bench", "--url", url, *SHORT, "--save", str(path), *options)
    assert code == 0, told
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_the_short_form_measures_what_the_server_does(run_cli: Run, toy: str) -> None:
    code, out, _ = run_cli("bench", "--url", toy, "--concurrency", "1,8", "--max-tokens", "16", "--json")
    result = json.loads(out)
    assert code == 0 and (result["url"], result["model"], result["max_tokens"]) == (toy, "toy", 16)
    assert [row["concurrency"] for row in result["rows"]] == [1, 8]
    for row in result["rows"]:
        assert 50 <= row["ttft_p50_ms"] < 100  # a busy machine makes it later, nothing makes it sooner
        assert 8 < row["tpot_p50_ms"] < 15
        assert row["errors"] == {}


def test_progress_is_told_apart_from_the_result(run_cli: Run, toy: str) -> None:
    _, out, told = run_cli("bench", "--url", toy, *SHORT)
    assert out.split()[:2] == ["concurrency", "tok/s"] and "tok/s: 2/2" in told


def test_the_json_holds_every_request_and_the_csv_a_row_a_load(run_cli: Run, toy: str, tmp_path: Path) -> None:
    table = tmp_path / "run.csv"
    data = saved(run_cli, toy, tmp_path / "run.json", "--concurrency", "1,2", "--rounds", "2", "--csv", str(table))
    assert [(one["figures"]["load"], one["round"], len(one["requests"])) for one in data["rounds"]] == [
        ("1 at once", 0, 1),
        ("1 at once", 1, 1),
        ("2 at once", 0, 2),
        ("2 at once", 1, 2),
    ]
    assert {len(request["arrivals"]) for one in data["rounds"] for request in one["requests"]} == {10}
    rows = list(csv.DictReader(table.open()))
    assert [row["load"] for row in rows] == ["1 at once", "2 at once"]
    assert float(rows[1]["ttft_p50_ms"]) == pytest.approx(data["rows"][1]["ttft_p50_ms"])


def test_at_a_rate_requests_come_whether_or_not_others_have_ended(run_cli: Run, toy: str) -> None:
    _, out, _ = run_cli(
        "bench", "--url", toy, "--rate", "40", "--requests", "40", *SHORT[:2], "--rounds", "1", "--json"
    )
    (row,) = json.loads(out)["rows"]
    assert row["requests"] == 40 and row["kept_share"] > 0.9
    assert 140 <= row["e2e_p50_ms"] < 250


def test_a_trace_is_replayed_at_its_times(run_cli: Run, toy: str, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "run.json"
    calls = [{"time": 0.4 * n, "prompt": "hello", "output_tokens": n + 2} for n in range(3)]
    trace.write_text("\n".join(map(json.dumps, calls)))
    code, _, told = run_cli(
        "bench", "--url", toy, "--trace", str(trace), "--speed", "2", "--rounds", "1", "--save", str(out)
    )
    assert code == 0, told
    requests = sorted(json.loads(out.read_text())["rounds"][0]["requests"], key=lambda request: request["due"])
    assert [(request["due"], request["tokens"]) for request in requests] == [(0, 2), (pytest.approx(0.2), 3), (0.4, 4)]


def test_clients_that_leave_are_no_errors(run_cli: Run, toy: str) -> None:
    _, out, _ = run_cli("bench", "--url", toy, *SHORT, "--requests", "12", "--cancel", "0.5", "--json")
    (row,) = json.loads(out)["rows"]
    assert 0 < row["cancelled"] < 12 and row["errors"] == {}
    assert row["cancelled"] + row["answered"] == 12


def test_the_load_generator_tells_what_it_takes_itself(run_cli: Run, toy: str) -> None:
    _, out, _ = run_cli("bench", "--url", toy, *SHORT, "--overhead", "--json")
    result = json.loads(out)
    assert 0 < result["rows"][0]["generator_cpu_share"] < 0.5
    (added,) = result["overhead"]
    assert -1 < added["ttft_added_p50_ms"] < 20 and 0 < added["cpu_us_per_token"] < 5000


def test_a_side_that_is_slower_ends_with_10(run_cli: Run, toy: str, slower: str) -> None:
    live = ("bench", "compare", "--url-a", toy, "--url-b", slower, "--rounds", "3", *SHORT[:4], "--json")
    code, out, _ = run_cli(*live)
    result = json.loads(out)
    assert (code, result["verdict"], result["pairs"]) == (10, "slower", 3)
    ttft = next(one for one in result["compared"] if one["metric"] == "ttft_p50_ms")
    assert ttft["ratio"]["ratio"] == pytest.approx(2, abs=0.3) and ttft["verdict"] == "slower"


def test_saved_runs_are_compared_round_by_round(run_cli: Run, toy: str, slower: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    saved(run_cli, slower, a, "--rounds", "3")
    saved(run_cli, toy, b, "--rounds", "3")
    code, out, _ = run_cli("bench", "compare", str(a), str(b))
    assert code == 0 and "B is faster" in out
    code, out, _ = run_cli("bench", "compare", str(a), str(a), str(b), str(b))
    assert code == 0 and "no difference within 2 % (tokens_per_second; 6 pairs of rounds)" in out


def test_one_round_of_each_settles_nothing(run_cli: Run, toy: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    saved(run_cli, toy, path)
    code, out, _ = run_cli("bench", "compare", str(path), str(path))
    assert code == 11 and "unclear" in out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--url", "http://127.0.0.1:9"), 5, "no gateway answers there"),
        (("--url", "http://127.0.0.1:9", "--model", "m"), 5, "no connection"),
        (("--url", "grpc://127.0.0.1:9"), 2, "asked in token ids"),
        (("--concurrency", "0"), 2, "not a list of counts"),
        (("--rate", "-1"), 2, "not a list of requests/s"),
        (("--rate", "1", "--concurrency", "1"), 2, "--concurrency and --rate exclude each other"),
        (("--slo", "ttft=0ms", "--model", "m"), 2, "no answer comes within no time"),
        (("--trace", "/dev/null"), 2, "the trace is empty"),
        (("--duration", "soon"), 2, "needs a number and a unit"),
        (("--api-key-env", "CONCH_NO_SUCH_KEY"), 2, "the environment holds no CONCH_NO_SUCH_KEY"),
        (("compare", "/dev/null"), 2, "1 files are no pairs"),
        (("compare", "/dev/null", "/dev/null"), 2, "not what `conch bench --save` writes"),
        (("compare",), 2, "needs either FILES or both"),
        (("compare", "a", "b", "--metric", "speed"), 2, "no metric 'speed'"),
    ],
)
def test_wrong_input_is_told_in_one_sentence(run_cli: Run, words: tuple[str, ...], code: int, told: str) -> None:
    found, out, complaint = run_cli("bench", *words)
    assert (found, out) == (code, "")
    assert told in complaint and len(complaint.strip().splitlines()) == 1
