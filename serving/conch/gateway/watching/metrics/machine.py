"""The machine's figures: its processors and memory, this process's, and the GPUs where NVML tells of them.

Knows nothing of models. Processors and memory are read from `/proc`, and left out where there is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Host:
    busy_seconds: float
    """Of all processors together, since the machine started."""
    idle_seconds: float
    memory_bytes: int
    available_bytes: int
    """Memory that programs could still get."""


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    utilization: float
    """Share of the last moments in which it computed, 0 to 1."""
    used_bytes: int
    memory_bytes: int


def read_host(proc: Path = Path("/proc")) -> Host | None:
    """None where the system does not tell."""
    try:
        times = [int(ticks) / _TICKS for ticks in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        pairs = (line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        memory = {name: int(value.split()[0]) * 1024 for name, value in pairs}
        idle = times[3] + times[4]
        return Host(sum(times) - idle, idle, memory["MemTotal"], memory["MemAvailable"])
    except (OSError, ValueError, LookupError):
        return None


class Gpus:
    """NVML, if it is there. It stays open as long as the process lives."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        with contextlib.suppress(ImportError):
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
                self._nvml = pynvml

    def read(self) -> list[Gpu]:
        """Those that answer."""
        return [gpu for index, handle in enumerate(self._handles) if (gpu := self._read(index, handle)) is not None]

    def _read(self, index: int, handle: Any) -> Gpu | None:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            share = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError:  # a MIG slice has no rates; a card may fall off its bus
            return None
        return Gpu(index, uuid, name, share, memory.used, memory.total)


class Machine(Collector):
    """All of it as metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gpus = Gpus()
        ProcessCollector(registry=registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        host = read_host()
        if host is not None:
            seconds = CounterMetricFamily(
                "conch:host_cpu_seconds", "Seconds of the machine's processors", labels=["mode"]
            )
            seconds.add_metric(["busy"], host.busy_seconds)
            seconds.add_metric(["idle"], host.idle_seconds)
            yield seconds
            yield GaugeMetricFamily("conch:host_memory_bytes", "Memory of the machine", host.memory_bytes)
            yield GaugeMetricFamily(
                "conch:host_memory_available_bytes", "Memory that programs could still get", host.available_bytes
            )
        if gpus := self.gpus.read():
            yield from gpu_families(gpus)


def gpu_families(gpus: Sequence[Gpu]) -> Iterator[Metric]:
    """A sample a GPU in each."""
    for name, text, values in (
        ("conch:gpu_utilization_ratio", "Share of time in which a GPU computed", [gpu.utilization for gpu in gpus]),
        ("conch:gpu_memory_used_bytes", "Memory of a GPU in use", [gpu.used_bytes for gpu in gpus]),
        ("conch:gpu_memory_bytes", "Memory of a GPU", [gpu.memory_bytes for gpu in gpus]),
    ):
        family = GaugeMetricFamily(name, text, labels=["gpu", "uuid", "name"])
        for gpu, value in zip(gpus, values, strict=True):
            family.add_metric([str(gpu.index), gpu.uuid, gpu.name], value)
        yield family
