"""Run as a script: runs a program, and ends it with everything it started once it or its owner is gone.

    python guard.py OWNER_PID REGIONS CPUS PROGRAM ARGUMENT...

The owner starts this as the leader of a new process group. A server killed alone would leave its stubs, a
supervisor killed alone its server and their shared memory (REGIONS is a glob pattern), and what mpirun starts is in
process groups of its own; it all ends here, at once on SIGINT. CPUS: those that all of it may use, `0,1`, or `all`.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PERIOD_SECONDS = 0.1


class _Stopped(Exception):
    """SIGINT came."""


def main(owner: int, regions: str, cpus: str, command: list[str]) -> None:
    if cpus != "all":
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whoever loses its parent becomes a child of this
    ended = 0
    try:
        signal.signal(signal.SIGINT, _stop)
        program = os.posix_spawn(command[0], command, os.environ)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(program, signal.SIGTERM))
        while os.getppid() == owner and ended != program:
            time.sleep(_PERIOD_SECONDS)
            ended, _ = os.waitpid(-1, os.WNOHANG)
    except _Stopped:
        pass
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_children()
    for region in Path(regions).parent.glob(Path(regions).name):
        region.unlink(missing_ok=True)
    os.killpg(0, signal.SIGKILL)


def _stop(*_: object) -> None:
    raise _Stopped


def _end_children() -> None:
    """Children that end leave theirs behind as new ones; at last there is none."""
    while True:
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
