"""The NVIDIA GPUs of this machine, as their driver tells. Knows nothing of plans."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

_FIELDS = "name,memory.total,compute_cap,driver_version"


@dataclass(frozen=True)
class InstalledGpu:
    name: str
    memory_bytes: int
    sm: int
    """Compute capability as TensorRT-LLM writes it: 90 for 9.0."""
    driver: str


def installed_gpus() -> tuple[InstalledGpu, ...]:
    """In the order of their numbers; none without a driver."""
    command = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if asked.returncode != 0:
        return ()
    return tuple(gpu for gpu in map(_read, asked.stdout.splitlines()) if gpu is not None)


def _read(line: str) -> InstalledGpu | None:
    try:
        name, mebibytes, capability, driver = (part.strip() for part in line.split(","))
        return InstalledGpu(name, int(mebibytes) << 20, int(capability.replace(".", "")), driver)
    except ValueError:  # a GPU that is lost, or a device that is none
        return None
