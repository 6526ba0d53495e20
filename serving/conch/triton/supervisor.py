"""`TritonServer`: a tritonserver kept alive. One thread starts it, watches it and starts it again.

A server whose python backend has died still calls itself ready, so it is judged by its processes and by
requests to the engine. Knows nothing of what the models compute.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from conch.triton.find import SECURITY_FLOOR, TritonInstall, find_tritonserver
from conch.triton.folder import backend_folder
from conch.triton.launch import Launch, Ports
from conch.triton.place import EVERYWHERE, Place
from conch.triton.probe import OWN_PROBE, Probe
from conch.triton.process import TritonProcess, remove_dead_regions
from conch.triton.reasons import UnexplainedError
from conch_build.errors import ConchError, ServiceError, SetupError
from conch_build.launch import SINGLE, Arrangement

_PROBE_SECONDS = 0.5
_ANSWER_SECONDS = 1.0  # with the pause between probes, a death is noticed within 2 s
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_HEALTHY_SECONDS = 60.0

log = logging.getLogger(__name__)


class State(enum.Enum):
    """What callers can expect of the server now."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"


class TritonServer:
    """A watched tritonserver over one model repository.

    A port of 0 takes a free one, kept over restarts. A dead process is noticed within 2 s; `hang_seconds` is
    how long a living one may leave probes unanswered, for a busy machine is slow long before it is stuck.
    """

    def __init__(
        self,
        repository: Path,
        *,
        http_port: int = 8000,
        grpc_port: int = 8001,
        metrics_port: int = 8002,
        host: str = "127.0.0.1",
        log_path: Path,
        run_folder: Path,
        drain_seconds: float = 30.0,
        start_seconds: float = 300.0,
        hang_seconds: float = 10.0,
        install: TritonInstall | None = None,
        arrangement: Arrangement = SINGLE,
        probe: Probe = OWN_PROBE,
        place: Place = EVERYWHERE,
    ) -> None:
        self._repository = repository.absolute()
        self._asked_ports = (http_port, grpc_port, metrics_port)
        self._host = host
        self._log_path = log_path
        self._run_folder = run_folder.absolute()
        self._drain_seconds: float = drain_seconds
        self._start_seconds = start_seconds
        self._hang_seconds = hang_seconds
        self._install = install
        self._arrangement = arrangement
        self._probe = probe
        self._place = place
        self._launch: Launch | None = None
        self._process: TritonProcess | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._failure: ConchError | None = None
        self._listeners: list[Callable[[State], None]] = []
        self.state = State.STOPPED
        self.restarts = 0

    def start(self) -> None:
        """Return when the server has generated a token. Raises SetupError or ServiceError with the reason.

        A start that fails for no reason that its log gives is tried once more.
        """
        remove_dead_regions()
        install = self._install or find_tritonserver()
        self._check_bind(install)
        self._launch = Launch(
            install=install,
            backends=backend_folder(install, self._run_folder),
            repository=self._repository,
            host=self._host,
            ports=Ports.choose(*self._asked_ports, self._host),
            drain_seconds=round(self._drain_seconds),
            log_path=self._log_path,
            arrangement=self._arrangement,
            probe=self._probe,
            place=self._place,
        )
        self._stopping.clear()
        self._settled.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(self._launch,), name="conch-triton", daemon=True)
        self._thread.start()
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self, drain_seconds: float | None = None) -> None:
        """Refuse new requests, let those in flight end, then end the server. Once stopped it does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if drain_seconds is not None:
            self._drain_seconds = drain_seconds
        self._stopping.set()
        thread.join()

    def on_change(self, listener: Callable[[State], None]) -> None:
        """Call `listener` with each new state, on the watching thread."""
        self._listeners.append(listener)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def http_url(self) -> str:
        return f"http://{self._host}:{self._started.ports.http}"

    @property
    def grpc_url(self) -> str:
        """As tritonclient wants it: host:port."""
        return f"{self._host}:{self._started.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._host}:{self._started.ports.metrics}/metrics"

    @property
    def _started(self) -> Launch:
        if self._launch is None:
            raise ServiceError("the tritonserver was not started")
        return self._launch

    def _check_bind(self, install: TritonInstall) -> None:
        if self._host == "localhost" or ipaddress.ip_address(self._host).is_loopback:
            return
        version = install.version()
        text = ".".join(map(str, version))
        if version < SECURITY_FLOOR:
            raise SetupError(
                f"tritonserver {text} has known security holes and must not be reachable",
                where=self._host,
                fix=f"Bind 127.0.0.1, or use a server from {'.'.join(map(str, SECURITY_FLOOR))} (25.07) on.",
            )

    def _run(self, launch: Launch) -> None:
        """The life of the server, on a thread of its own."""
        wait = _FIRST_WAIT_SECONDS
        self._change(State.STARTING)
        while not self._stopping.is_set():
            started = time.monotonic()
            process = self._process = TritonProcess(launch)
            try:
                if self._becomes_ready(process):
                    self._change(State.READY)
                    self._settled.set()
                    self._watch(process)
            except ConchError as error:
                process.kill()
                once_more = isinstance(error, UnexplainedError) and not self.restarts
                if not (self._settled.is_set() or once_more):
                    self._failure = error
                    break
                log.error("%s; restarting in %.1f s", error, wait)
            if self._stopping.is_set():
                break
            self._change(State.RESTARTING)
            self.restarts += 1
            wait = _FIRST_WAIT_SECONDS if time.monotonic() - started > _HEALTHY_SECONDS else wait
            self._stopping.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        if self._process is not None and self._failure is None:
            self._change(State.DRAINING)
            self._process.drain(self._drain_seconds)
        self._process = None
        self._change(State.STOPPED)
        self._settled.set()

    def _becomes_ready(self, process: TritonProcess) -> bool:
        """False when asked to stop meanwhile; raises the reason when it fails."""
        end = time.monotonic() + self._start_seconds
        while not self._stopping.wait(0.1):
            if not process.is_running():
                raise process.failure()
            if process.is_ready():
                return True
            if time.monotonic() > end:
                raise ServiceError(
                    f"tritonserver was not ready after {self._start_seconds:.0f} s", where=str(self._log_path)
                )
        return False

    def _watch(self, process: TritonProcess) -> None:
        """Return when asked to stop; raise ServiceError when the server or a stub is dead or stuck."""
        answered = time.monotonic()
        while not self._stopping.wait(_PROBE_SECONDS):
            if not process.is_running():
                raise ServiceError("tritonserver or its python backend died", where=str(self._log_path))
            try:
                process.probe(_ANSWER_SECONDS)
                answered = time.monotonic()
            except TimeoutError:
                silent = time.monotonic() - answered
                if silent > self._hang_seconds:
                    raise ServiceError(f"the engine has not answered for {silent:.0f} s") from None

    def _change(self, state: State) -> None:
        self.state = state
        for listener in self._listeners:
            listener(state)
