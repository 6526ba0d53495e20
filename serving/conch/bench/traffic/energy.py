"""Energy that this machine's own counters tell: RAPL of the processors, NVML of the GPUs. None where there are none.

It is all that the machine took, idle parts included, and means nothing for a server elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Counter:
    """One package or GPU. `turns_over` at so many joules; 0: never."""

    joules: float
    turns_over: float = 0.0


Meter = dict[str, Counter]


def read_meter(rapl: Path = RAPL) -> Meter:
    """Every counter that may be read now."""
    return {**_processors(rapl), **_gpus()}


def used(before: Meter, after: Meter) -> float | None:
    """Joules between two readings; None where nothing was read both times."""
    shared = before.keys() & after.keys()
    if not shared:
        return None
    total = 0.0
    for name in shared:
        grown = after[name].joules - before[name].joules
        total += grown if grown >= 0 else grown + after[name].turns_over
    return total


def _processors(rapl: Path) -> Meter:
    """Whole packages alone: their parts (`intel-rapl:0:1`) would count twice."""
    meter: Meter = {}
    for zone in sorted(rapl.glob("intel-rapl:*")):
        if zone.name.count(":") != 1:
            continue
        try:
            micro = [int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
        except (OSError, ValueError):  # newer kernels let only root read it
            continue
        meter[zone.name] = Counter(micro[0] / 1e6, micro[1] / 1e6)
    return meter


def _gpus() -> Meter:
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return {
            f"gpu{n}": Counter(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
            for n, handle in enumerate(handles)
        }
    except pynvml.NVMLError:
        return {}
