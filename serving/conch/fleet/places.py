"""Which CPUs or GPUs of this machine each replica has. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from conch.triton.place import EVERYWHERE, Place
from conch_build.errors import SetupError
from conch_build.launch import Arrangement

_TOPOLOGY = Path("/sys/devices/system/cpu")


def places(replicas: int, arrangement: Arrangement) -> list[Place]:
    """A place for each replica. Raises SetupError when there are more of them than CPUs.

    GPUs are taken in their order, those of an engine beside each other; CPUs are shared out evenly, with the threads of
    a core and the cores of a socket together.
    """
    if replicas == 1:
        return [EVERYWHERE]
    if size := arrangement.gpus if arrangement.gpus_per_node else 0:
        visible = _visible_gpus(replicas * size)
        return [Place(gpus=visible[number * size : (number + 1) * size]) for number in range(replicas)]
    cpus = sorted(os.sched_getaffinity(0), key=_position)
    if len(cpus) < replicas:
        raise SetupError(
            f"{replicas} replicas need a CPU each, and this process may use {len(cpus)}",
            where="serving.replicas",
            fix="Serve fewer.",
        )
    return [Place(cpus=tuple(part)) for part in _parts(cpus, replicas)]


def _parts(items: Sequence[int], count: int) -> list[Sequence[int]]:
    """So many parts, whose sizes differ by one at most."""
    ends = [number * len(items) // count for number in range(count + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def _visible_gpus(count: int) -> tuple[int, ...]:
    """The first of those that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [int(name) for name in named.split(",") if name.strip().isdigit()]
    return tuple((visible or list(range(count)))[:count])


def _position(cpu: int) -> tuple[int, int, int]:
    """Socket, core, number; where the system does not tell, the number alone."""

    def told(name: str) -> int:
        try:
            return int((_TOPOLOGY / f"cpu{cpu}" / "topology" / name).read_text())
        except (OSError, ValueError):
            return 0

    return told("physical_package_id"), told("core_id"), cpu
