"""`conch batch` on the real stack: one answer to each row, whatever happens on the way."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway, eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

SOME_FAILED = 7


def command(gateway: Gateway, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "conch.cli", "batch", *map(str, arguments), "--url", gateway.url]


def ran(gateway: Gateway, *arguments: str | Path, code: int = 0) -> Any:
    done = subprocess.run([*command(gateway, *arguments), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def wrote(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_row_has_its_answer_in_order(gateway: Gateway, tmp_path: Path) -> None:
    source = wrote(tmp_path / "in.jsonl", [{"id": number, "text": f"Say {number}"} for number in range(40)])
    output = tmp_path / "out.jsonl"
    told = ran(gateway, source, "-o", output, "--max-tokens", "4", "--hourly-usd", "3.6")
    assert (told["answered"], told["failed"]) == (40, 0)
    assert told["usd"] == pytest.approx(told["seconds"] / 1000)
    rows = read(output)
    assert [row["id"] for row in rows] == list(range(40))
    body = {"messages": [{"role": "user", "content": "Say 7"}], "max_tokens": 4, "temperature": 0}
    assert rows[7]["answer"] == gateway.ok("chat/completions", **body)["choices"][0]["message"]["content"]
    assert sum(row["answer_completion_tokens"] for row in rows) == told["completion_tokens"]
    assert not (tmp_path / "out.jsonl.progress").exists()


def test_rows_that_cannot_be_answered_are_kept_with_the_reason(gateway: Gateway, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"Say {number}"} for number in range(20)]
    rows[3], rows[5], rows[7] = {"text": "word " * 4000}, {"text": 5}, {"text": ""}
    source, output = wrote(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    arguments = (source, "-o", output, "--max-tokens", "4", "--too-long", "fail")
    told = ran(gateway, *arguments, code=SOME_FAILED)
    assert (told["answered"], told["failed"]) == (17, 3)
    failed = {number: row["answer_error"] for number, row in enumerate(read(output)) if row["answer"] is None}
    assert failed.keys() == {3, 5, 7}
    assert "longer than the context" in failed[3] and "not a text" in failed[5] and "empty" in failed[7]
    assert ran(gateway, *arguments, code=2)["what"] == "is there already"
    assert ran(gateway, *arguments, "--retry-failed", code=SOME_FAILED)["answered"] == 17


def test_a_document_longer_than_the_context_is_asked_about_in_parts(gateway: Gateway, tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {number}. The sea is wide and the fish are many." for number in range(400))
    source, output = wrote(tmp_path / "in.jsonl", [{"text": text}, {"text": "Short."}]), tmp_path / "out.jsonl"
    ran(gateway, source, "-o", output, "--prompt", "Summarize: {text}", "--max-tokens", "16")
    long, short = read(output)
    assert long["answer"] and long["answer_parts"] >= 4 and short["answer_parts"] == 1
    assert long["answer_prompt_tokens"] > gateway.context


def test_answers_follow_a_schema(gateway: Gateway, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,text\n1,I love it\n2,I hate it\n", encoding="utf-8")
    schema = tmp_path / "schema.json"
    kinds = {"type": "string", "enum": ["good", "bad"]}
    schema.write_text(json.dumps({"type": "object", "properties": {"mood": kinds}, "required": ["mood"]}))
    output = tmp_path / "out.csv"
    ran(gateway, source, "-o", output, "--schema", schema, "--prompt", "Which mood? {text}", "--max-tokens", "30")
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    assert [json.loads(row["answer"])["mood"] in ("good", "bad") for row in rows] == [True, True]
    told = ran(gateway, source, "-o", tmp_path / "cut.jsonl", "--schema", schema, "--max-tokens", "2", code=SOME_FAILED)
    assert told["failed"] == 2
    assert "was cut at 2 tokens" in read(tmp_path / "cut.jsonl")[0]["answer_error"]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "kills"), [(400, 3)])
def test_a_batch_that_is_killed_goes_on_and_no_row_is_lost_or_asked_twice(
    gateway: Gateway, tmp_path: Path, rows: int, kills: int
) -> None:
    source = wrote(tmp_path / "in.jsonl", [{"id": number, "text": f"Say {number}"} for number in range(rows)])
    output, progress = tmp_path / "out.jsonl", tmp_path / "out.jsonl.progress"
    arguments = (source, "-o", output, "--max-tokens", "3")

    def kept() -> int:
        return progress.read_bytes().count(b"\n") - 1 if progress.exists() else 0

    for _ in range(kills):
        before = kept()
        with subprocess.Popen(command(gateway, *arguments), stderr=subprocess.PIPE) as process:
            assert eventually(lambda: kept() >= before + rows // 8, 60)  # noqa: B023
            second = ran(gateway, *arguments, code=2)
            assert second["what"] == "another `conch batch` writes this output"
            os.kill(process.pid, signal.SIGKILL)
    assert 0 < kept() < rows
    told = ran(gateway, *arguments)
    assert (told["answered"], told["failed"]) == (rows, 0)
    assert Counter(row["id"] for row in read(output)) == Counter(range(rows))
    assert all(row["answer"] for row in read(output))


@pytest.mark.slow
def test_a_gateway_that_dies_stops_the_batch_and_one_that_is_back_lets_it_go_on(
    stack_triton: TritonServer, sample_build: BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_HOME", str(tmp_path / "home"))
    source = wrote(tmp_path / "in.jsonl", [{"text": f"Say {number}"} for number in range(300)])
    arguments = (source, "-o", tmp_path / "out.jsonl", "--max-tokens", "3", "--patience", "3")
    progress = tmp_path / "out.jsonl.progress"
    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        process = subprocess.Popen([*command(gateway, *arguments), "--json"], stdout=subprocess.PIPE, text=True)
        assert eventually(lambda: progress.exists() and progress.read_bytes().count(b"\n") > 30, 60)
    began = time.monotonic()
    said = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, said["error"]) == (5, "UnavailableError")
    assert "run the same command again" in said["fix"] and time.monotonic() - began < 30
    with running_gateway(stack_triton, sample_build.engine.path) as gateway:
        assert ran(gateway, *arguments)["answered"] == 300


@pytest.mark.slow
def test_a_plan_is_served_for_its_batch_and_then_no_more(sample_build: BuildResult, tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text(f"{SAMPLE_PLAN}cost: {{instance_hourly_usd: 3.6}}\n", encoding="utf-8")
    source, output = wrote(tmp_path / "in.jsonl", [{"text": "Say one"}]), tmp_path / "out.jsonl"
    arguments = ["batch", source, "-o", output, "--plan", plan, "--max-tokens", "4", "--json"]
    done = subprocess.run([sys.executable, "-m", "conch.cli", *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usd"] > 0
    assert read(output)[0]["answer"]


def test_what_is_wrong_with_a_batch_is_said_before_it_begins(gateway: Gateway, tmp_path: Path) -> None:
    source = wrote(tmp_path / "in.jsonl", [{"text": "a"}])
    for arguments, words in (
        (("--prompt", "{title}"), "no column 'title'"),
        (("--model", "nope"), "serves no model 'nope'"),
        (("--max-tokens", "99999"), "the context has"),
        (("--schema", str(source.with_name("none.json"))), "cannot be read"),
    ):
        assert words in ran(gateway, source, "-o", tmp_path / "out.jsonl", *arguments, code=2)["what"]
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
