"""One tritonserver process: started, asked for signs of life, drained, killed. Knows nothing of restarts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conch.triton import guard
from conch.triton.launch import Launch
from conch.triton.reasons import explain
from conch_build.errors import ServiceError, SetupError

_GUARD = (sys.executable, "-I", "-S", guard.__file__)
_SHARED_MEMORY = Path("/dev/shm")
_MODEL = "tensorrt_llm"
_SERVER_NAME = "tritonserver"
_GUARD_SECONDS = 10.0


class TritonProcess:
    """A started server, its guard around it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        region_prefix = f"conch-{os.getpid()}-{secrets.token_hex(4)}-"
        self._regions = f"{region_prefix}*"
        command = launch.command(region_prefix)
        cpus = ",".join(map(str, launch.place.cpus)) or "all"
        program = shutil.which(command.argv[0]) or command.argv[0]
        with launch.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._guard = subprocess.Popen(
                [*_GUARD, str(os.getpid()), str(_SHARED_MEMORY / self._regions), cpus, program, *command.argv[1:]],
                env=launch.environment(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watched: list[int] = []
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The server's own, which clients talk to; None once it has ended."""
        return next(iter(self._servers()), None)

    def is_running(self) -> bool:
        """Whether every server and every stub that lived when it became ready lives."""
        return self._guard.poll() is None and all(_is_alive(pid) for pid in self._watched)

    def is_ready(self) -> bool:
        """Whether the server generates a token. Raises ServiceError if it answers that it cannot."""
        if self._guard.poll() is not None or not self._answers_ready():
            return False
        status, answer = self._post(self._launch.probe.generates, timeout=60)
        if status != 200:
            raise ServiceError(f"Triton answers {status}: {answer}")
        servers = self._servers()
        self._watched = [*servers, *(stub for server in servers for stub in _children(server))]
        return True

    def probe(self, timeout: float) -> None:
        """A request that generates nothing, answered by the engine's own model.

        Raises ServiceError if it is refused, TimeoutError if it is not answered.
        """
        status, answer = self._post(self._launch.probe.asks, timeout=timeout)
        if status != 200 and self._launch.probe.means_dead(answer):
            raise ServiceError(f"Triton answers {status}: {answer}")

    def failure(self) -> SetupError | ServiceError:
        """Why the server did not start, in one sentence from its log."""
        return explain(self.log(), self._launch.log_path)

    def log(self) -> str:
        """What this server has logged so far."""
        with self._launch.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", errors="replace")

    def drain(self, seconds: float) -> None:
        """Let requests in flight end, for so long; then end the server."""
        if self._guard.poll() is None:
            for server in self._servers():  # mpirun itself would not let them take their time
                _signal(server, signal.SIGTERM)
            try:
                self._guard.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End the server and all that it has started now; every open stream ends with them."""
        if self._ended:  # the number of its process group may belong to others by now
            return
        self._ended = True
        if self._guard.poll() is None:
            self._guard.send_signal(signal.SIGINT)
            try:
                self._guard.wait(timeout=_GUARD_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self._guard.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._guard.wait()
        for region in _SHARED_MEMORY.glob(self._regions):
            region.unlink(missing_ok=True)

    def _servers(self) -> list[int]:
        """Every tritonserver under the guard, the one that clients talk to first."""
        found, level = [], _children(self._guard.pid)
        while level:
            found += [pid for pid in level if _name(pid) == _SERVER_NAME]
            level = [child for pid in level for child in _children(pid)]
        return found

    def _answers_ready(self) -> bool:
        connection = http.client.HTTPConnection(self._launch.host, self._launch.ports.http, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _post(self, body: Mapping[str, Any], timeout: float) -> tuple[int, str]:
        """The status and the text that answer it. Raises ServiceError without an answer, TimeoutError in time."""
        connection = http.client.HTTPConnection(self._launch.host, self._launch.ports.http, timeout=timeout)
        try:
            connection.request("POST", f"/v2/models/{_MODEL}/generate", json.dumps(body))
            response = connection.getresponse()
            answer = response.read().decode("utf-8", errors="replace").strip()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"Triton does not answer: {error}") from None
        finally:
            connection.close()
        failed_late = answer.startswith('{"error"')  # an error after the headers comes with 200
        return (500 if failed_late and response.status == 200 else response.status), answer


def remove_dead_regions() -> None:
    """Shared memory that servers of supervisors long dead have left behind."""
    for region in _SHARED_MEMORY.glob("conch-*-*-*"):
        owner = region.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            region.unlink(missing_ok=True)


def _children(pid: int | None) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has just ended
            found += [int(child) for child in tasks.read_text().split()]
    return found


def _name(pid: int) -> str:
    """Of the program that a process runs; a script's is that of its interpreter."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
