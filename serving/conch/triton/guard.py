"""Run as a script: runs a program, and ends it with everything it started once it or its owner is gone.

    python guard.py OWNER_PID REGIONS PROGRAM ARGUMENT...

The owner starts this as the leader of a new process group. A server killed alone would leave its stubs, a
supervisor killed alone its server and their shared memory (REGIONS is a glob pattern); it all ends here.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PERIOD_SECONDS = 0.1


def main(owner: int, regions: str, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # stubs without a server are collected here
    program = os.posix_spawn(command[0], command, os.environ)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(program, signal.SIGTERM))
    ended = 0
    while os.getppid() == owner and ended != program:
        time.sleep(_PERIOD_SECONDS)
        ended, _ = os.waitpid(-1, os.WNOHANG)
    for region in Path(regions).parent.glob(Path(regions).name):
        region.unlink(missing_ok=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
