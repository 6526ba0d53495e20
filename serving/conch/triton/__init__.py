"""A real tritonserver: found, started on loopback, watched, restarted and drained.

    find.py         where it is installed and what it needs to run
    gpu.py          the same on a machine with GPUs: what a plan for them needs
    folder.py       the backend folder that it starts with
    launch.py       its ports and its command
    place.py        the CPUs or GPUs that it may use
    probe.py        the requests by which it is judged
    guard.py        a script around it that leaves no process behind
    process.py      one running server
    reasons.py      why it did not start
    supervisor.py   `TritonServer`: start, watch, restart, stop

Knows nothing of engines and HTTP gateways: a repository goes in, three URLs come out.
"""

from conch.triton.find import SECURITY_FLOOR, TritonInstall, find_tritonserver
from conch.triton.supervisor import State, TritonServer

__all__ = ["SECURITY_FLOOR", "State", "TritonInstall", "TritonServer", "find_tritonserver"]
