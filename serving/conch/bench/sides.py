"""The sides of a comparison: processes that answer jobs, a server over HTTP or a library through its driver.

Knows how to start one, ask it and end it, not what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from conch.bench.figures import Timing
from conch.bench.load import Prompts, timed_round
from conch.bench.workloads import Job, Measured
from conch_build.errors import ConchError, DeadlineError, ServiceError, SetupError

_STOP_SECONDS = 20.0
_JOB_SECONDS = 600.0


@dataclass(frozen=True)
class Facts:
    """What is told of a side beside its figures."""

    name: str
    tuned: str
    """How it was set up, and why."""
    weight_bytes: int
    """Of all matrices that a decode step reads, as they are stored."""
    kv_bytes_per_token: int
    most_at_once: int
    """Requests that it is set up for."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Side(Protocol):
    facts: Facts
    process: Process

    def start(self, timeout: float) -> None:
        """Returns when it answers. Raises SetupError, ServiceError or DeadlineError."""

    def measure(self, job: Job) -> Measured:
        """Raises ServiceError when it fails."""


@dataclass
class Process:
    """A command in a session of its own; what it says goes to `log`."""

    command: list[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self.env},
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"cannot be started: {error.strerror}", where=self.command[0]) from None
        self._read = b""

    def line(self, text: str) -> None:
        """Write one line to its stdin."""
        assert self._process.stdin
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self.death() from None

    def said(self, complete: Callable[[bytes], bool], timeout: float) -> bytes:
        """All that its stdout has said since the last call, once it is `complete`."""
        assert self._process.stdout
        end = time.monotonic() + timeout
        while not complete(self._read):
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"said nothing within {timeout:.0f} s", where=self.command[0], fix=self._see())
            if not select.select([self._process.stdout], [], [], left)[0]:
                continue
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise self.death()
            self._read += data
        read, self._read = self._read, b""
        return read

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def death(self) -> ServiceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = lines[-1].strip()[:200] if lines else "it said nothing"
        return ServiceError(f"ended with code {self._process.poll()}: {last}", where=self.command[0], fix=self._see())

    def resident_bytes(self) -> int:
        """Of all its processes together."""
        import psutil

        total = 0
        for process in _tree(self._process.pid):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def stop(self) -> None:
        """Ask it, then end all that is left of it."""
        if not hasattr(self, "_process"):
            return
        if not self.dead:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _see(self) -> str:
        return f"See {self.log}."


def _tree(pid: int) -> Iterable[Any]:
    import psutil

    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


@dataclass
class Server:
    """A side that has an OpenAI API. `address`: its URL once it is ready, by what its process does."""

    facts: Facts
    process: Process
    model: str
    address: Callable[[Process, float], str]

    def start(self, timeout: float) -> None:
        self.process.start()
        self.url = self.address(self.process, timeout)

    def measure(self, job: Job) -> Measured:
        requests = Prompts(self.model, job.prompts, job.max_tokens)
        round_ = timed_round(self.url, requests, job.concurrency, len(job.prompts))
        try:
            return Measured(*asyncio.run(_within(round_, _JOB_SECONDS)))
        except ConchError:
            if self.process.dead:
                raise self.process.death() from None
            raise


async def _within(awaited: Any, seconds: float) -> Any:
    try:
        return await asyncio.wait_for(awaited, seconds)
    except asyncio.TimeoutError:
        raise DeadlineError(f"a round took longer than {seconds:.0f} s") from None


@dataclass
class Library:
    """A side without a server: `process` runs `driver.py`."""

    facts: Facts
    process: Process

    def start(self, timeout: float) -> None:
        self.process.start()
        self._answer(timeout)

    def measure(self, job: Job) -> Measured:
        self.process.line(json.dumps(asdict(job)))
        answer = self._answer(_JOB_SECONDS)
        timings = [
            Timing(tuple(request["arrivals"]), request["tokens"], request["prompt_tokens"])
            for request in answer["requests"]
        ]
        return Measured(answer["seconds"], timings)

    def _answer(self, timeout: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.process.said(lambda read: read.endswith(b"\n"), timeout))
        return answer


def address_told(process: Process, timeout: float) -> str:
    """The gateway's address, out of what `conch serve --json` prints when it is ready."""

    def whole(read: bytes) -> bool:
        with contextlib.suppress(ValueError):
            json.loads(read)
            return True
        return False

    told = json.loads(process.said(whole, timeout))
    if "gateway" not in told:
        raise ServiceError(str(told.get("what", told)), where=told.get("where"), fix=told.get("fix"))
    return str(told["gateway"])


def address_polled(url: str) -> Callable[[Process, float], str]:
    """`url`, once its `/health` answers with 200."""
    import urllib.request

    def wait(process: Process, timeout: float) -> str:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if process.dead:
                raise process.death()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                return url
            time.sleep(0.5)
        raise DeadlineError(f"was not ready within {timeout:.0f} s", where=url, fix=f"See {process.log}.")

    return wait
