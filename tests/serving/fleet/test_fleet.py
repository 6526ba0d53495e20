"""Two replicas behind one gateway, under traffic: one dies, another build takes over, a bad one does not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import eventually

if TYPE_CHECKING:
    from conch.gateway.settings import Server
    from conch_build.pipeline import BuildResult

pytestmark = pytest.mark.slow
SERVING = """
serving:
  replicas: 2
  triton: {http_port: 0, grpc_port: 0, metrics_port: 0}
  gateway: {port: 0, database: {url: "sqlite:///%s/gateway.db"}}
"""


class Served:
    """A running `conch serve` and what it has said."""

    def __init__(self, process: subprocess.Popen[str], plan: Path, notes: Path, told: dict[str, Any]) -> None:
        self.process = process
        self.plan = plan
        self.url: str = told["gateway"]
        self.replicas: list[dict[str, str]] = told["replicas"]
        self._notes = notes

    def notes(self) -> str:
        return self._notes.read_text()

    def tritons(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if child.name() == "tritonserver"]

    def metric(self, name: str) -> list[float]:
        text = httpx.get(f"{self.url}/metrics").text
        return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{")]


@pytest.fixture(scope="module")
def served(sample_build: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fleet")
    plan, notes = folder / "conch.yaml", folder / "notes"
    plan.write_text(SAMPLE_PLAN + SERVING % folder)
    command = [sys.executable, "-m", "conch.cli", "serve", str(plan), "--json"]
    with (
        notes.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            yield Served(process, plan, notes, told)
        finally:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.wait(30)


class Caller(threading.Thread):
    """Asks again and again, streaming, until told to stop."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._url = served.url
        self._stop_asking = threading.Event()
        self.outcomes: list[str] = []
        self.start()

    def run(self) -> None:
        body = {"model": "smollm2", "prompt": "1, 2, 3,", "max_tokens": 24, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as http:
            while not self._stop_asking.is_set():
                response = http.post("/v1/completions", json=body)
                events = [line for line in response.text.splitlines() if line.startswith("data: ")]
                whole = response.status_code == 200 and events[-1] == "data: [DONE]"
                broken = [event for event in events if event.startswith('data: {"error"')]
                self.outcomes.append("whole" if whole and not broken else response.text[-300:])

    def stop(self) -> list[str]:
        self._stop_asking.set()
        self.join()
        return self.outcomes


@contextmanager
def traffic(served: Served) -> Iterator[list[str]]:
    """Inside, four callers ask all the time; afterwards the list has what became of each request."""
    callers, outcomes = [Caller(served) for _ in range(4)], list[str]()
    try:
        assert eventually(lambda: all(caller.outcomes for caller in callers), seconds=30)
        yield outcomes
    finally:
        for caller in callers:
            outcomes += caller.stop()


def test_each_replica_has_cpus_of_its_own_and_both_answer(served: Served) -> None:
    mine = [set(triton.cpu_affinity()) for triton in served.tritons()]
    assert len(mine) == 2
    assert not mine[0] & mine[1]
    assert mine[0] | mine[1] == os.sched_getaffinity(0)
    with traffic(served) as outcomes:
        assert eventually(lambda: min(served.metric("conch:upstream_requests_total")) > 3, seconds=30)
    assert set(outcomes) == {"whole"}
    assert len(served.metric("vllm:num_requests_running")) == 2


def test_the_death_of_a_replica_costs_only_what_runs_there(served: Served) -> None:
    victim = served.tritons()[0]
    with traffic(served) as outcomes:
        victim.kill()
        assert eventually(lambda: min(served.metric("conch:upstream_up")) == 0, seconds=10)
        assert eventually(lambda: min(served.metric("conch:upstream_up")) == 1, seconds=60)
        assert len(served.tritons()) == 2
    broken = [outcome for outcome in outcomes if outcome != "whole"]
    assert len(broken) <= 4
    assert all('{"error"' in outcome for outcome in broken)


def test_another_build_takes_over_and_no_request_fails(served: Served, sample_build: BuildResult) -> None:
    before = [triton.cmdline() for triton in served.tritons()]
    served.plan.write_text(served.plan.read_text().replace("quantization: {format: int8}", "quantization: {}"))
    with traffic(served) as outcomes:
        served.process.send_signal(signal.SIGUSR2)
        assert eventually(lambda: "roll        done" in served.notes(), seconds=240), served.notes()
    assert set(outcomes) == {"whole"}
    after = served.tritons()
    assert len(after) == 2
    for triton in after:
        assert str(sample_build.repository.path) not in " ".join(triton.cmdline())
        assert triton.cmdline() not in before


def test_what_a_running_gateway_cannot_follow_is_refused_and_nothing_changes(served: Served) -> None:
    before = {triton.pid for triton in served.tritons()}
    text = served.plan.read_text()
    for change, words in (
        (("replicas: 2", "replicas: 1"), "`serving` changed, which a running gateway cannot follow"),
        (("max_seq_len: 2048", "max_seq_len: 1024"), "otherwise than the gateway does (max_seq_len)"),
        (("{}", "{format: int3}"), "int3"),
    ):
        served.plan.write_text(text.replace(*change))
        served.process.send_signal(signal.SIGUSR2)
        assert eventually(lambda words=words: words in served.notes(), seconds=120), served.notes()
    assert {triton.pid for triton in served.tritons()} == before
    assert httpx.get(f"{served.url}/health/ready").status_code == 200


class Members:
    """A gateway's servers, as addresses."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)

    def join(self, server: Server) -> None:
        self.urls.append(server.grpc_url)

    async def leave(self, grpc_url: str, seconds: float) -> None:
        self.urls.remove(grpc_url)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_build_that_does_not_start_leaves_all_as_it_was(
    replicas: int, sample_build: BuildResult, tmp_path: Path
) -> None:
    from conch.fleet import Fleet
    from conch.fleet.rolling import roll
    from conch.hosting import Hosting
    from conch_build.errors import ServiceError
    from conch_build.plan import parse_plan

    broken = tmp_path / "repository"
    shutil.copytree(sample_build.repository.path, broken, symlinks=True)
    (broken / "tensorrt_llm" / "1" / "model.py").write_text("raise RuntimeError('it is broken')")
    bad = replace(sample_build, repository=replace(sample_build.repository, path=broken))
    plan = parse_plan(SAMPLE_PLAN + (SERVING % tmp_path).replace("replicas: 2", f"replicas: {replicas}"))
    said: list[str] = []
    fleet = Fleet(plan, Hosting(), said.append)
    try:
        fleet.start(sample_build)
        members = Members(*(replica.triton.grpc_url for replica in fleet.replicas))
        with pytest.raises(ServiceError, match="replica 0 did not start with the new build, and all serve the old one"):
            asyncio.run(roll(fleet, members, bad, 5, said.append))
        assert [replica.build for replica in fleet.replicas] == [sample_build] * replicas
        assert sorted(members.urls) == sorted(replica.triton.grpc_url for replica in fleet.replicas)
    finally:
        fleet.stop()
