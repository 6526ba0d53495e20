"""The access log of a running gateway: what it tells of requests, and its rotation."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import eventually, running_gateway

if TYPE_CHECKING:
    from conch.triton import TritonServer
    from conch_build.pipeline import BuildResult

SECRET = "the secret of the prompt"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def plan(tmp_path: Path, log: Path) -> str:
    path = tmp_path / "conch.yaml"
    path.write_text(f"{SAMPLE_PLAN}\nserving: {{gateway: {{access_log: {log}}}}}\n")
    return str(path)


def told(log: Path, count: int) -> list[dict[str, Any]]:
    assert eventually(lambda: log.exists() and len(log.read_text().splitlines()) >= count)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == count
    return lines


@pytest.mark.conforms("OBS-3")
def test_each_request_has_one_line_and_no_text_of_it(
    stack_triton: TritonServer, sample_build: BuildResult, plan: str, log: Path
) -> None:
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway:
        body = {"prompt": SECRET, "max_tokens": 6, "ignore_eos": True}
        gateway.http.post("/v1/completions", json=body, headers={"x-request-id": "whole"})
        gateway.post("completions", {**body, "stream": True, "n": 2})
        gateway.post("completions", {**body, "max_tokens": 100_000})
        gateway.post("completions", {**body, "model": SECRET})
        with gateway.http.stream("POST", "/v1/completions", json={**body, "max_tokens": 1000, "stream": True}) as left:
            next(left.iter_lines())
        gateway.http.get("/health/ready")
        whole, stream, refused, unknown, gone = told(log, 5)
    assert SECRET not in log.read_text()
    assert whole["request_id"] == "whole"
    assert (whole["model"], whole["endpoint"], whole["status"]) == ("smollm2", "completions", 200)
    assert (whole["completion_tokens"], whole["finish"]) == (6, ["length"])
    assert whole["upstream"] == [stack_triton.grpc_url]
    assert "ttft_seconds" not in whole
    assert (stream["completion_tokens"], stream["finish"], stream["stream"]) == (12, ["length", "length"], True)
    assert 0 <= stream["queue_seconds"] < stream["ttft_seconds"] < stream["e2e_seconds"]
    assert (refused["status"], refused["error"]) == (400, "invalid_request")
    assert (unknown["status"], unknown["path"]) == (404, "/v1/completions")
    assert (gone["error"], gone["status"]) == ("cancelled", 200)
    assert gone["completion_tokens"] > 0


def test_sighup_opens_it_anew_and_ends_nothing(
    stack_triton: TritonServer, sample_build: BuildResult, plan: str, log: Path
) -> None:
    with running_gateway(stack_triton, sample_build.engine.path, "--plan", plan) as gateway:
        gateway.http.get("/v1/models")
        told(log, 1)
        log.rename(log.with_suffix(".1"))
        gateway.process.send_signal(signal.SIGHUP)
        gateway.http.get("/v1/models")
        assert told(log, 1)[0]["path"] == "/v1/models"
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(10) == 0
