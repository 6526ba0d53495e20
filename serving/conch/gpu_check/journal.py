"""Steps that are timed, logged and allowed to fail: what one of them raises is written down, and the day goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from conch_build.errors import ConchError, DeadlineError, ServiceError
from conch_build.units import format_seconds

T = TypeVar("T")
Say = Callable[[str], None]
_TAIL_LINES = 150


@dataclass
class Step:
    name: str
    state: str = "running"
    """running, ok, failed or skipped."""
    seconds: float = 0.0
    detail: str = ""
    """Of a failed or skipped one: why."""
    data: Any = None
    log: str | None = None
    log_tail: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Journal:
    """The steps of a day. `changed` is called after each, so that a day cut short has a report, too."""

    def __init__(self, folder: Path, say: Say, changed: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self._say = say
        self._changed = changed

    def step(self, name: str, work: Callable[[Path], T], keep: Callable[[T], Any] = lambda result: result) -> T | None:
        """Do `work`, which is given a path for its log; None if it failed. `keep`: what of the result is noted."""
        log = self.folder / f"{len(self.steps):02d}-{re.sub('[^A-Za-z0-9_.]+', '-', name)}.log"
        step = Step(name, log=str(log))
        self.steps.append(step)
        self._say(f"{name} ...")
        started = time.monotonic()
        result = None
        try:
            result = work(log)
            step.state, step.data = "ok", keep(result)
        except ConchError as error:
            step.state, step.detail = "failed", error.message
        except KeyboardInterrupt:
            step.state, step.detail = "failed", "interrupted"
            raise
        except Exception as error:  # a fault in Conch is what such a day is to find
            step.state, step.detail = "failed", f"{type(error).__name__}: {error}"
            with log.open("a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
        finally:
            step.seconds = round(time.monotonic() - started, 3)
            step.log_tail = tail(log) if step.state == "failed" else []
            told = f": {step.detail}" if step.detail else ""
            self._say(f"{name}: {step.state} in {format_seconds(step.seconds)}{told}")
            self._changed()
        return result

    def skip(self, name: str, why: str) -> None:
        """Note a step that cannot be done."""
        self.steps.append(Step(name, "skipped", detail=why))
        self._say(f"{name}: skipped: {why}")
        self._changed()

    def count(self, state: str) -> int:
        return sum(step.state == state for step in self.steps)


def run(
    command: Sequence[str], log: Path, *, seconds: float, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """What a program prints on stdout; everything goes to the log, too.

    Raises ServiceError with its last line when it fails, DeadlineError when it outlasts `seconds`.
    """
    shown = " ".join((Path(command[0]).name, *command[1:4]))
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                errors="replace",
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise ServiceError(f"`{command[0]}` cannot be run: {error.strerror}") from None
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise DeadlineError(f"`{shown}` took longer than {format_seconds(seconds)}") from None
            raise
        file.write(output)
    if process.returncode != 0:
        raise ServiceError(f"exit code {process.returncode}: {_reason(output, log)}", where=shown)
    return output


def end(process: subprocess.Popen[Any], grace_seconds: float = 30.0) -> None:
    """End the leader of a process group as `kill` would; what outlasts the grace goes with its whole group."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(output: str, log: Path) -> str:
    """Of a program that failed: the error that `conch --json` prints, else its last line."""
    try:
        error = json.loads(output)
        return ". ".join(str(error[key]) for key in ("what", "fix") if error.get(key))
    except (ValueError, KeyError, TypeError, AttributeError):
        lines = [line for line in tail(log) if line.strip()]
        return lines[-1] if lines else "it printed nothing"


def tail(log: Path) -> list[str]:
    """Its last lines; none where it is not there."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
