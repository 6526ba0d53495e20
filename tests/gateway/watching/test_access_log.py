"""The access log: what a line says, and how lines reach a file that is rotated, slow or gone."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.middleware import Middleware

from conch.gateway import errors
from conch.gateway.transport.middleware import BodyLimit, Envelope
from conch.gateway.watching import lines
from conch.gateway.watching.access_log import AccessLog, line_of
from conch.gateway.watching.lines import LineWriter
from conch.gateway.watching.record import Record, Telling
from conch_build.errors import SetupError
from conch_build.plan import load_plan
from conch_build.plan_gateway import Gateway


def nobody(count: float) -> None:
    raise AssertionError("a line was lost")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Told(list[str]):
    @property
    def last(self) -> dict[str, Any]:
        return dict(json.loads(self[-1]))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def client(told: Told) -> AsyncIterator[httpx.AsyncClient]:
    layers = [
        Middleware(Telling, tellers=[AccessLog(told.append)]),
        Middleware(Envelope),
        Middleware(BodyLimit, limit=100, larger={}),
    ]
    app = FastAPI(middleware=layers)
    errors.install(app)

    @app.post("/v1/size/{name}")
    async def size(request: Request, name: str) -> int:
        return len(await request.body())

    @app.get("/v1/bug")
    async def bug() -> None:
        raise KeyError("secret")

    @app.get("/health/live")
    async def live() -> int:
        return 1

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def test_a_request_is_one_line_with_its_id_and_no_query(client: httpx.AsyncClient, told: Told) -> None:
    await client.post("/v1/size/a?key=secret", content="abc", headers={"x-request-id": "mine"})
    assert len(told) == 1
    line = told.last
    assert (line["request_id"], line["method"], line["path"], line["status"]) == ("mine", "POST", "/v1/size/a", 200)
    assert line["e2e_seconds"] >= 0
    assert line["time"].endswith("+00:00")
    assert "secret" not in told[0]


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [("POST", "/v1/size/a", "x" * 200, 413), ("GET", "/nowhere", "", 404), ("GET", "/v1/bug", "", 500)],
)
async def test_refused_and_failed_requests_have_a_line_too(
    client: httpx.AsyncClient, told: Told, method: str, path: str, content: str, status: int
) -> None:
    await client.request(method, path, content=content)
    assert told.last["status"] == status
    assert "secret" not in told[0]


@pytest.mark.conforms("OBS-3")
async def test_what_a_caller_writes_starts_no_line_of_its_own(client: httpx.AsyncClient, told: Told) -> None:
    await client.post('/v1/size/a%0A{"forged":1}%0D%1B[31m%E2%80%A8', headers={"x-request-id": "a\tb"})
    assert len(told) == 1
    assert told[0].isprintable() and told[0].isascii()
    assert told.last["path"].startswith('/v1/size/a\n{"forged"')
    assert told.last["request_id"] != "a\tb"
    await client.post(f"/v1/size/{'long' * 1000}")
    assert len(told[-1]) < 1000


async def test_looks_at_health_have_a_line_only_when_they_fail(client: httpx.AsyncClient, told: Told) -> None:
    await client.get("/health/live")
    assert not told
    await client.post("/health/live")
    assert told.last["status"] == 405


def test_a_line_names_the_key_by_its_id() -> None:
    scope = {
        "method": "POST",
        "path": "/v1/completions",
        "client": ("10.0.0.1", 1234),
        "headers": [(b"authorization", b"Bearer secret")],
        "state": {"request_id": "a", "status": 429, "key": SimpleNamespace(id="ada")},
    }
    line = line_of(Record(scope, 0.0, 1.0))
    assert (line["key"], line["client"], line["status"]) == ("ada", "10.0.0.1", 429)
    assert "secret" not in json.dumps(line)


def test_a_client_that_left_before_an_answer_has_499() -> None:
    scope = {"method": "POST", "path": "/v1/completions", "client": None, "state": {"request_id": "a"}}
    assert Record(scope, 0.0, 1.0).status == 499


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    writer = LineWriter(path, nobody)
    writer.write("one")
    until(lambda: path.read_text() == "one\n")
    path.rename(moved)
    writer.write("two")
    until(lambda: path.exists() and path.read_text() == "two\n")
    path.unlink()
    writer.write("three")
    until(lambda: path.exists() and path.read_text() == "three\n")
    writer.close()
    assert moved.read_text() == "one\n"


def test_a_gateway_that_starts_again_writes_on(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    for line in ("one", "two"):
        writer = LineWriter(path, nobody)
        writer.write(line)
        writer.close()
    assert path.read_text() == "one\ntwo\n"


def test_a_file_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"cannot write.*serving\.gateway\.access_log"):
        LineWriter(tmp_path / "nowhere" / "access.log", nobody)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    lost: list[float] = []
    writer = LineWriter(Path("/dev/full"), lost.append)
    for number in range(3):
        writer.write("x" * 100_000)
        until(lambda number=number: sum(lost) == number + 1)  # type: ignore[misc]
    writer.close()


def test_a_reader_that_stands_still_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            go.wait()
            return super().write(text)

    stdout, lost = Stuck(), []
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr(lines, "_MOST_WAITING", 10)
    writer = LineWriter(None, lost.append)
    started = time.perf_counter()
    for number in range(100):
        writer.write(str(number))
    assert time.perf_counter() - started < 1
    go.set()
    writer.close()
    assert sum(lost) + len(stdout.getvalue().split()) == 100
    assert sum(lost) >= 80


def test_a_relative_path_starts_at_the_plans_folder(tmp_path: Path) -> None:
    path = tmp_path / "conch.yaml"
    for written, meant in (
        ("logs/access.log", str(tmp_path / "logs/access.log")),
        ("off", "off"),
        ("stdout", "stdout"),
    ):
        path.write_text(f"name: m\nmodel: {{checkpoint: sample}}\nserving: {{gateway: {{access_log: {written}}}}}\n")
        assert load_plan(path).serving.gateway.access_log == meant


@pytest.mark.parametrize(("written", "meant"), [(False, "off"), ("off", "off"), ("stdout", "stdout"), ("a/b", "a/b")])
def test_yaml_reads_off_as_false_and_it_means_off(written: object, meant: str) -> None:
    assert Gateway.model_validate({"access_log": written}).access_log == meant
