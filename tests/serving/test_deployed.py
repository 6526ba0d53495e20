"""What runs in the containers of a deployment, here without them: the health check, and the watched server alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from conch.client import Client
from conch.triton.find import find_tritonserver
from conch.triton.folder import backend_folder
from conch.triton.launch import Launch, Ports
from conch.triton.process import TritonProcess
from conch_build.deploy import ready
from tests.serving.test_triton import wait_for


def is_healthy(url: str) -> bool:
    """As the container asks: by the exit code of the script, with nothing of Conch on its path."""
    command = [sys.executable, "-I", "-S", ready.__file__, url]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_the_health_check_asks_for_a_token_and_notices_a_dead_backend_behind_a_ready_server(
    counting_repository: Path, tmp_path: Path
) -> None:
    install = find_tritonserver()
    ports = Ports.choose(0, 0, 0, "127.0.0.1")
    url = f"http://127.0.0.1:{ports.http}"
    assert not is_healthy(url)
    folder = backend_folder(install, tmp_path / "run")
    process = TritonProcess(
        Launch(install, folder, counting_repository, "127.0.0.1", ports, 5, tmp_path / "triton.log")
    )
    try:
        wait_for(process.is_ready, 60)
        assert is_healthy(url)
        for stub in psutil.Process(process.pid).children():
            stub.kill()
        assert not is_healthy(url)
        connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=10)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
    finally:
        process.kill()


def test_the_watched_server_is_a_program_of_its_own_and_drains_on_a_signal(
    counting_repository: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "conch.triton", str(counting_repository), "--json"]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    environment = {**os.environ, "CONCH_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert is_healthy(found["http"])
        with Client(found["grpc"]) as client:
            assert client.generate([1], max_tokens=2).tokens == (2, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
