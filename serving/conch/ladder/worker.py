"""The process of one rung: `python -m conch.ladder.worker OWNER SETUP`, with `SETUP` as JSON. It ends with OWNER.

Reads a job a line and answers each with a line: wall seconds, the timing of each request, and the most memory that the
process has held.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conch.bench.figures import Timing
from conch.ladder.workload import Job, job_of
from conch.orphans import end_with
from conch_build.errors import ConchError

Run = Callable[[Job], list[Timing]]


def runner_of(setup: dict[str, Any]) -> Run:
    if setup["kind"] == "transformers":
        from conch.ladder.plain import Transformers

        names = ("dtype", "threads", "cache", "batched")
        return Transformers(Path(setup["checkpoint"]), **{name: setup[name] for name in names}).run
    from conch.ladder.engines import Engines
    from conch_build.adapter_registry import AdapterRegistry

    registries = [AdapterRegistry.model_validate(one) for one in setup["registries"]]
    return Engines(Path(setup["engine"]), registries or [None]).run


def peak_bytes() -> int:
    """Of resident memory. Not `ru_maxrss`, in which the process that started this one counts too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    end_with(int(sys.argv[1]), signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between the answers
    try:
        run = runner_of(json.loads(sys.argv[2]))
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            job = job_of(json.loads(line))
            started = time.perf_counter()
            timings = run(job)
            told = {"seconds": time.perf_counter() - started, "timings": [vars(timing) for timing in timings]}
            print(json.dumps({**told, "peak_bytes": peak_bytes()}), file=answers)
    except ConchError as error:
        print(json.dumps({"error": error.message}), file=answers)
    answers.flush()
    os._exit(0)  # engines own threads, and nothing is left to be written


if __name__ == "__main__":
    main()
