"""Several Tritons of one plan on this machine, behind one gateway.

places.py      which CPUs or GPUs each of them has
fleet.py       started together, ended together, replaced one by one
rolling.py     another build takes over under traffic, one replica after the other
reload.py      SIGUSR2: the plan is read again, built, and rolled out
"""

from conch.fleet.fleet import Fleet, Replica
from conch.fleet.reload import reloads

__all__ = ["Fleet", "Replica", "reloads"]
