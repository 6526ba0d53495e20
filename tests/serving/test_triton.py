"""The supervisor over a real tritonserver: starts, deaths, restarts, draining, and nothing left behind."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conch.client import AsyncClient, Client
from conch.triton import State, TritonServer
from conch.triton.find import find_tritonserver
from conch.triton.process import remove_dead_regions
from conch.triton.reasons import explain
from conch_build.errors import RequestError, ServiceError, SetupError


@pytest.fixture
def new_server(counting_repository: Path, tmp_path: Path) -> Iterator[Callable[..., TritonServer]]:
    servers: list[TritonServer] = []

    def make(**options: Any) -> TritonServer:
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        server = TritonServer(
            counting_repository,
            **{**ports, "log_path": tmp_path / "triton.log", "run_folder": tmp_path / "run", **options},
        )
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop(0)


class Answer:
    """One request to the counting model; a streamed one is read on a thread of its own."""

    def __init__(self, server: TritonServer, *, tokens: int, streaming: bool) -> None:
        self.status = 0
        self.body = b""
        self.error: Exception | None = None
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(server.http_url, tokens, streaming))
        self._thread.start()

    def wait_for_first(self) -> None:
        assert self._first.wait(20)

    def finish(self, seconds: float) -> list[dict[str, Any]]:
        """The responses, once the server has closed the stream."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream hangs"
        return [json.loads(line[5:]) for line in self.body.splitlines() if line.startswith(b"data:")]

    def _read(self, url: str, tokens: int, streaming: bool) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        body = {"input_ids": [1], "input_lengths": 1, "request_output_len": tokens, "streaming": streaming}
        path = f"/v2/models/tensorrt_llm/{'generate_stream' if streaming else 'generate'}"
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            self.status = response.status
            while line := response.readline():
                self.body += line
                self._first.set()
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            self._first.set()
            connection.close()


def wait_for(condition: Callable[[], bool], seconds: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


def stub_of(server: TritonServer) -> psutil.Process:
    assert server.pid is not None
    (stub,) = psutil.Process(server.pid).children()
    return stub


def has_ended(process: psutil.Process) -> bool:
    """Also when nobody has collected it yet: in a container, process 1 may not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def regions_of(pid: int) -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"conch-{pid}-*")}


def test_it_is_ready_when_started_and_leaves_nothing_behind_when_stopped(
    new_server: Callable[..., TritonServer],
) -> None:
    regions = regions_of(os.getpid())
    server = new_server()
    seen: list[State] = []
    server.on_change(seen.append)
    server.start()
    processes = [psutil.Process(server.pid), stub_of(server)]
    assert server.state is State.READY
    answer = Answer(server, tokens=3, streaming=True)
    assert [response["output_ids"] for response in answer.finish(10)] == [2, 3, 4]

    server.stop()
    assert seen == [State.STARTING, State.READY, State.DRAINING, State.STOPPED]
    assert all(has_ended(process) for process in processes)
    assert regions_of(os.getpid()) == regions


def test_a_killed_stub_is_noticed_within_two_seconds_ends_streams_and_comes_back(
    new_server: Callable[..., TritonServer],
) -> None:
    server = new_server()
    server.start()
    stream = Answer(server, tokens=1400, streaming=True)
    stream.wait_for_first()

    stub_of(server).kill()
    noticed = wait_for(lambda: server.state is not State.READY, 2)
    assert noticed < 2
    responses = stream.finish(3)
    assert 0 < len(responses) < 1400

    wait_for(lambda: server.state is State.READY, 30)
    assert server.restarts == 1
    answer = Answer(server, tokens=2, streaming=False)
    answer.finish(10)
    assert answer.status == 200


def test_a_killed_server_is_noticed_within_two_seconds_and_comes_back(
    new_server: Callable[..., TritonServer],
) -> None:
    server = new_server()
    server.start()
    url, stub = server.http_url, stub_of(server)
    psutil.Process(server.pid).kill()
    assert wait_for(lambda: server.state is not State.READY, 2) < 2
    wait_for(lambda: server.state is State.READY, 30)
    assert server.http_url == url
    assert has_ended(stub)


def test_stopping_lets_a_stream_in_flight_end(new_server: Callable[..., TritonServer]) -> None:
    server = new_server(drain_seconds=20)
    server.start()
    stream = Answer(server, tokens=300, streaming=True)
    stream.wait_for_first()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    wait_for(lambda: server.state is State.DRAINING, 2)
    time.sleep(0.3)
    refused = Answer(server, tokens=2, streaming=False)
    refused.finish(10)
    assert refused.status != 200
    responses = stream.finish(20)
    assert len(responses) == 300
    assert responses[-1]["conch_finish_reason"] == "length"
    stopping.join(20)
    assert server.state is State.STOPPED


def test_stopping_ends_what_outlasts_the_grace(new_server: Callable[..., TritonServer]) -> None:
    server = new_server()
    server.start()
    stream = Answer(server, tokens=1400, streaming=True)
    stream.wait_for_first()
    started = time.monotonic()
    server.stop(0.5)
    assert time.monotonic() - started < 3
    assert len(stream.finish(2)) < 1400


def test_answers_that_have_ended_do_not_hold_up_a_stop(new_server: Callable[..., TritonServer]) -> None:
    server = new_server(drain_seconds=30)
    server.start()

    async def ask_and_stop() -> float:
        with Client(server.grpc_url) as client:
            async with AsyncClient(server.grpc_url) as async_client:
                for _ in range(10):
                    assert client.generate([1], max_tokens=2).tokens == (2, 3)
                    assert (await async_client.generate([1], max_tokens=2)).tokens == (2, 3)
                    with pytest.raises(RequestError):
                        client.generate([1], max_tokens=0)
                    with pytest.raises(RequestError):
                        await async_client.generate([1], max_tokens=0)
                started = time.monotonic()
                await asyncio.to_thread(server.stop)
                return time.monotonic() - started

    assert asyncio.run(ask_and_stop()) < 15


def test_asking_for_callers_that_left_never_meets_an_answer_that_ends(
    new_server: Callable[..., TritonServer], counting_repository: Path
) -> None:
    config = counting_repository / "tensorrt_llm" / "config.pbtxt"
    key = 'key: "cancellation_check_period_ms" value { string_value: '
    assert f'{key}"50"' in config.read_text()
    config.write_text(config.read_text().replace(f'{key}"50"', f'{key}"0"'))
    server = new_server()
    server.start()
    end = time.monotonic() + 4
    statuses: list[int] = []

    def ask() -> None:
        while time.monotonic() < end:
            answer = Answer(server, tokens=1, streaming=False)
            answer.finish(10)
            statuses.append(answer.status)

    callers = [threading.Thread(target=ask) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(statuses) > 100
    assert set(statuses) == {200}
    assert server.restarts == 0


def test_a_port_in_use_is_one_sentence(new_server: Callable[..., TritonServer]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=f"gRPC port {port} cannot be used: Address already in use"):
            new_server(grpc_port=port).start()


def test_a_model_that_does_not_load_says_its_own_reason(
    new_server: Callable[..., TritonServer], counting_repository: Path
) -> None:
    regions = regions_of(os.getpid())
    (counting_repository.parent / "engine" / "broken").touch()
    server = new_server()
    with pytest.raises(ServiceError, match=r"could not load the model `tensorrt_llm`: the weights are damaged$"):
        server.start()
    assert server.state is State.STOPPED
    assert regions_of(os.getpid()) == regions


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_start_that_dies_without_a_reason_is_tried_once_more(
    new_server: Callable[..., TritonServer], counting_repository: Path, crashes: int
) -> None:
    for number in range(crashes):
        (counting_repository.parent / "engine" / f"crash{number}").touch()
    server = new_server()
    seen: list[State] = []
    server.on_change(seen.append)
    if crashes == 1:
        server.start()
        assert seen == [State.STARTING, State.RESTARTING, State.READY]
    else:
        with pytest.raises(ServiceError, match="could not load the model `tensorrt_llm`"):
            server.start()
        assert seen == [State.STARTING, State.RESTARTING, State.STOPPED]


def test_administration_is_closed_and_the_rest_is_open(new_server: Callable[..., TritonServer]) -> None:
    server = new_server()
    server.start()

    def status(method: str, path: str) -> int:
        connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=10)
        connection.request(method, path)
        return connection.getresponse().status

    for method, path in (
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/tensorrt_llm/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/status"),
        ("GET", "/v2/logging"),
        ("GET", "/v2/trace/setting"),
    ):
        assert status(method, path) == 403, path
    for path in (
        "health/ready",
        "models/tensorrt_llm",
        "models/tensorrt_llm/config",
        "models/tensorrt_llm/stats",
    ):
        assert status("GET", f"/v2/{path}") == 200, path
    for port in (server.http_url, server.metrics_url):
        assert "127.0.0.1" in port


def test_an_old_server_refuses_a_public_bind(new_server: Callable[..., TritonServer]) -> None:
    if find_tritonserver().version() >= (2, 59):
        pytest.skip("this server has the fixes")
    with pytest.raises(SetupError, match="must not be reachable"):
        new_server(host="0.0.0.0").start()


def test_nothing_outlives_a_killed_supervisor(counting_repository: Path, tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from conch.triton import TritonServer
server = TritonServer(Path(sys.argv[1]), http_port=0, grpc_port=0, metrics_port=0,
                      log_path=Path(sys.argv[2]) / "triton.log", run_folder=Path(sys.argv[2]) / "run")
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program, str(counting_repository), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        triton = psutil.Process(int(supervisor.stdout.readline()))
        family = [triton, *triton.children()]
        supervisor.send_signal(signal.SIGKILL)
    wait_for(lambda: all(has_ended(process) for process in family), 10)
    wait_for(lambda: regions_of(supervisor.pid) == set(), 5)


def test_shared_memory_of_dead_supervisors_is_removed_and_that_of_living_ones_is_not() -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    regions = [Path(f"/dev/shm/conch-{pid}-test-region") for pid in (dead.pid, os.getpid())]
    for region in regions:
        region.touch()
    remove_dead_regions()
    assert [region.exists() for region in regions] == [False, True]
    regions[1].unlink()


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            "stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open it",
            "cannot load libpython3.11.so.1.0",
        ),
        ("RuntimeError: _ARRAY_API not found", "needs NumPy 1.x"),
        ("error: creating server: Internal - failed to stat file /nothing", "failed to stat file /nothing"),
        ("", "it logged nothing"),
        (
            'E1130 20:49:19.495066 6689 server.cc:241] "CudaDriverHelper has not been initialized."\n'
            "terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n"
            "  what():  boost::interprocess::lock_exception\nSignal (6) received.\n",
            "crashed: boost::interprocess::lock_exception",
        ),
    ],
)
def test_a_log_becomes_one_sentence(log: str, sentence: str) -> None:
    assert sentence in explain(log, Path("triton.log")).message
