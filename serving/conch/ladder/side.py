"""A rung's process: started when it is first asked, asked job after job, ended when memory is short.

Knows nothing of what is in the process but how to tell it; see `worker`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from conch.bench.figures import Timing
from conch.bench.sides import Process
from conch.ladder.rows import Round
from conch.ladder.workload import Job, as_dict
from conch_build.errors import ServiceError
from conch_build.files import home
from conch_build.machine import free_memory_bytes

_SECONDS = 900.0
"""For a worker to be ready, and for a round."""


class Side:
    """`setup`: what the worker is told. `warm_up`: asked once after each start, and not measured."""

    def __init__(self, name: str, setup: dict[str, Any], warm_up: Job) -> None:
        command = [sys.executable, "-m", "conch.ladder.worker", str(os.getpid()), json.dumps(setup)]
        self._process = Process(command, home() / "logs" / f"ladder-{name}.log")
        self._warm_up = warm_up
        self._running = False
        self.peak_bytes = 0

    def measure(self, job: Job) -> Round:
        """Raises ServiceError when the process fails, DeadlineError when it takes too long."""
        if not self._running:
            self._process.start()
            self._running = True
            self._answer()
            self._ask(self._warm_up)
        found = self._ask(job)
        if free_memory_bytes() < 2 * self.peak_bytes:
            self.stop()
        return found

    def stop(self) -> None:
        self._process.stop()
        self._running = False

    def _ask(self, job: Job) -> Round:
        self._process.line(json.dumps(as_dict(job)))
        told = self._answer()
        self.peak_bytes = max(self.peak_bytes, told["peak_bytes"])
        timings = [Timing(tuple(one["arrivals"]), one["tokens"], one["prompt_tokens"]) for one in told["timings"]]
        return Round(told["seconds"], timings)

    def _answer(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._process.said(lambda read: read.endswith(b"\n"), _SECONDS))
        if "error" in told:
            raise ServiceError(told["error"])
        return told
