"""kill -9 of each process under load: streams end with an error, readiness drops and returns, nothing leaks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

from tests.contract.conftest import Gateway, eventually
from tests.contract.triton_calls import wait_until_idle
from tests.fault.conftest import SHORT, Footprint, NewGateway, Stream, is_idle, settles

if TYPE_CHECKING:
    from conch.triton import TritonServer

STREAMS = 8
MIB = 1 << 20
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("victim", ["stub", "tritonserver"])
def test_a_killed_engine_ends_streams_with_an_error_and_comes_back(
    new_gateway: NewGateway, triton: TritonServer, victim: str
) -> None:
    with new_gateway() as gateway:
        before, regions, processes = Footprint.of(gateway), regions_of_this(), family(triton)
        streams = loaded(gateway)
        failed = gateway.metric("vllm:request_success_total", finished_reason="error")

        (server,) = [process for process in processes if process.pid == triton.pid]
        (server if victim == "tritonserver" else server.children()[0]).kill()
        killed = time.monotonic()
        assert seconds_until(lambda: ready(gateway) == 503, 4) < 2
        for stream in streams:
            stream.join(5)
            assert not stream.is_alive(), "the stream hangs"
            assert stream.ended_at - killed < 4
            assert stream.failure is None
            assert stream.events[-1] == "[DONE]"
            assert json.loads(stream.events[-2])["error"]["code"] in ("unavailable", "engine_error")
        assert gateway.metric("vllm:request_success_total", finished_reason="error") == failed + STREAMS

        refused = gateway.http.post("/v1/completions", json=SHORT)
        if refused.status_code != 200:  # else it is back already
            assert refused.status_code in (502, 503)
            assert "conch-" not in refused.text
            assert "stub" not in refused.text
        assert eventually(lambda: ready(gateway) == 200, seconds=60)
        assert gateway.ok("completions", **SHORT)
        assert settles(gateway, before, more_bytes=48 * MIB), Footprint.of(gateway)
        assert eventually(lambda: all(has_ended(process) for process in processes))
        assert len(regions_of_this()) <= len(regions)


def test_a_killed_gateway_frees_the_engine_and_another_takes_its_place(
    new_gateway: NewGateway, triton: TritonServer
) -> None:
    with new_gateway() as gateway:
        streams = loaded(gateway)
        gateway.process.kill()
        for stream in streams:
            stream.join(5)
            assert isinstance(stream.failure, httpx.HTTPError)  # nobody is left to write an event
        wait_until_idle(triton.metrics_url, seconds=3)
    with new_gateway() as gateway:
        assert ready(gateway) == 200
        assert is_idle(gateway)


def loaded(gateway: Gateway) -> list[Stream]:
    """The gateway with streams that all have begun."""
    streams = [Stream(gateway) for _ in range(STREAMS)]
    assert eventually(lambda: all(len(stream.events) > 3 for stream in streams), seconds=20)
    return streams


def ready(gateway: Gateway) -> int:
    return gateway.http.get("/health/ready").status_code


def seconds_until(condition: Callable[[], bool], seconds: float) -> float:
    started = time.monotonic()
    assert eventually(condition, seconds)
    return time.monotonic() - started


def family(triton: TritonServer) -> list[psutil.Process]:
    """The server and all that it has started."""
    server = psutil.Process(triton.pid)
    return [server, *server.children(recursive=True)]


def has_ended(process: psutil.Process) -> bool:
    """Also when nobody has collected it yet: in a container, process 1 may not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def regions_of_this() -> set[str]:
    """Shared memory of the servers that this process has started."""
    return {path.name for path in Path("/dev/shm").glob(f"conch-{os.getpid()}-*")}
