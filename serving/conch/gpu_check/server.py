"""A plan's whole stack while questions are asked: `conch serve` here, or the containers of `conch deploy compose`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conch.gpu_check.journal import end, run
from conch_build.errors import DeadlineError, ServiceError
from conch_build.files import home
from conch_build.plan import load_plan

_UP = ("docker", "compose", "up", "-d", "--build", "--wait")
_STOP_SECONDS = 120.0
_DOWN = ("docker", "compose", "down", "--timeout", "45")


class Stack:
    """Started; `url` is the gateway's, `triton` Triton's over HTTP."""

    def __init__(self, url: str, triton: str, stop: Callable[[Path], None], logs: Sequence[Path]) -> None:
        self.url = url
        self.triton = triton
        self.stop = stop
        """Ends it; what its servers say at last goes to a log of its own."""
        self.logs = logs
        """What they say as long as they run."""


def serve_here(conch: Sequence[str], plan: Path, log: Path, *, seconds: float) -> Stack:
    """`conch serve`, until it prints its addresses. Raises ServiceError with its error, DeadlineError."""
    out = log.with_suffix(".json")
    with log.open("ab") as err, out.open("wb") as stdout:
        process = subprocess.Popen(
            [*conch, "serve", str(plan), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=err,
            start_new_session=True,
        )
    ready = False
    try:
        found = _addresses(process, out, time.monotonic() + seconds)
        ready = True
    finally:
        if not ready:
            end(process, _STOP_SECONDS)

    def stop(_: Path) -> None:
        end(process, _STOP_SECONDS)
        if process.returncode != 0:
            raise ServiceError(f"`conch serve` ended with {process.returncode}", where=str(log))

    servers = home() / "logs" / f"{load_plan(plan).name}-triton.log"
    return Stack(found["gateway"], found["triton_http"], stop, (log, servers))


def serve_in_containers(conch: Sequence[str], plan: Path, folder: Path, log: Path, *, seconds: float) -> Stack:
    """The containers of the plan, once both are healthy."""
    run([*conch, "deploy", "compose", str(plan), "-o", str(folder)], log, seconds=600)

    def stop(last: Path) -> None:
        with contextlib.suppress(ServiceError):
            run(["docker", "compose", "logs", "--no-color", "--tail", "2000"], last, seconds=120, cwd=folder)
        run(_DOWN, last, seconds=300, cwd=folder)

    try:
        run(_UP, log, seconds=seconds, cwd=folder)
    except BaseException:
        stop(log)
        raise
    serving = load_plan(plan).serving
    url, triton = f"http://127.0.0.1:{serving.gateway.port}", f"http://127.0.0.1:{serving.triton.http_port}"
    return Stack(url, triton, stop, ())


def _addresses(process: subprocess.Popen[bytes], out: Path, end: float) -> dict[str, str]:
    while time.monotonic() < end:
        text = out.read_text(encoding="utf-8")
        ended = process.poll() is not None
        with contextlib.suppress(ValueError):
            found: dict[str, str] = json.loads(text)
            if "gateway" in found:
                return found
            if "what" in found:
                raise ServiceError(". ".join(found[key] for key in ("what", "fix") if found.get(key)))
        if ended:
            raise ServiceError(f"`conch serve` ended with {process.returncode}")
        time.sleep(0.2)
    raise DeadlineError("the server did not become ready in time")
