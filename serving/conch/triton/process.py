"""One tritonserver process: started, asked for signs of life, drained, killed. Knows nothing of restarts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from conch.triton import guard
from conch.triton.launch import Launch
from conch.triton.reasons import explain
from conch_build.errors import ServiceError, SetupError

_GUARD = (sys.executable, "-I", "-S", guard.__file__)
_SHARED_MEMORY = Path("/dev/shm")
_MODEL = "tensorrt_llm"


class TritonProcess:
    """A started server, its guard around it."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        region_prefix = f"conch-{os.getpid()}-{secrets.token_hex(4)}-"
        self._regions = f"{region_prefix}*"
        with launch.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._guard = subprocess.Popen(
                [*_GUARD, str(os.getpid()), str(_SHARED_MEMORY / self._regions), *launch.command(region_prefix)],
                env=launch.install.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stubs: list[int] = []
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The server's own; None once it has ended."""
        return next(iter(_children(self._guard.pid)), None)

    def is_running(self) -> bool:
        """Whether the server and every stub that it had when it became ready live."""
        return self._guard.poll() is None and all(_is_alive(pid) for pid in self._stubs)

    def is_ready(self) -> bool:
        """Whether the server generates a token. Raises ServiceError if it answers that it cannot."""
        if self._guard.poll() is not None or not self._answers_ready():
            return False
        self._post({"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "end_id": -1}, timeout=60)
        self._stubs = _children(self.pid)
        return True

    def probe(self, timeout: float) -> None:
        """A request that generates nothing, answered by the engine's own model.

        Raises ServiceError if it is refused, TimeoutError if it is not answered.
        """
        self._post({"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "stop": True}, timeout=timeout)

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
            self._guard.send_signal(signal.SIGTERM)
            try:
                self._guard.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End the server and its stubs now; every open stream ends with them."""
        if self._ended:  # the number of its process group may belong to others by now
            return
        self._ended = True
        try:
            os.killpg(self._guard.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._guard.wait()
        for region in _SHARED_MEMORY.glob(self._regions):
            region.unlink(missing_ok=True)

    def _answers_ready(self) -> bool:
        connection = http.client.HTTPConnection(self._launch.host, self._launch.ports.http, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _post(self, body: dict[str, Any], timeout: float) -> None:
        connection = http.client.HTTPConnection(self._launch.host, self._launch.ports.http, timeout=timeout)
        try:
            connection.request("POST", f"/v2/models/{_MODEL}/generate", json.dumps(body))
            response = connection.getresponse()
            answer = response.read().decode("utf-8", errors="replace")
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"Triton does not answer: {error}") from None
        finally:
            connection.close()
        if response.status != 200 or answer.startswith('{"error"'):  # an error after the headers comes with 200
            raise ServiceError(f"Triton answers {response.status}: {answer.strip()}")


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


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
