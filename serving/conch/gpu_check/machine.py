"""What a machine has of all that a GPU plan needs. Changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from conch_build.gpu.installed import InstalledGpu, installed_gpus
from conch_build.machine import memory_bytes

Means = Literal["host", "docker"]
_CPP_BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")


@dataclass(frozen=True)
class Machine:
    gpus: tuple[InstalledGpu, ...]
    docker: str | None
    """Its server's version; None: none that answers."""
    docker_gpus: bool
    """Whether containers can be given GPUs."""
    compose: str | None
    """Version of its plugin."""
    tensorrt_llm: str | None
    tritonserver: str | None
    cpp_backend: bool
    system: str
    cores: int
    memory_bytes: int
    disk_free_bytes: int
    shared_memory_bytes: int

    @property
    def missing(self) -> list[str]:
        """What keeps the chain from running, one sentence each."""
        found = []
        if not self.gpus:
            found.append("no NVIDIA GPU: nvidia-smi finds none")
        if self.docker is None and self.tensorrt_llm is None:
            found.append("neither docker nor the package tensorrt_llm")
        elif self.tensorrt_llm is None:
            if not self.docker_gpus:
                found.append("docker has no runtime for NVIDIA GPUs: install nvidia-container-toolkit")
            if self.compose is None:
                found.append("docker has no plugin `compose`: install docker-compose-plugin")
        elif self.tritonserver is None:
            found.append("tensorrt_llm is installed, and no tritonserver: start it in NVIDIA's Triton container")
        return found

    @property
    def means(self) -> Means | None:
        """Where the chain runs: on this machine itself, which NVIDIA's container is too, or in containers."""
        if self.missing:
            return None
        return "host" if self.tensorrt_llm and self.tritonserver else "docker"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missing": self.missing, "means": self.means}


def look(python: str = "python3") -> Machine:
    """`python`: the interpreter that would have the package tensorrt_llm."""
    version = "import importlib.metadata as m; print(m.version('tensorrt_llm'))"
    server = shutil.which("tritonserver") or _existing(Path("/opt/tritonserver/bin/tritonserver"))
    return Machine(
        gpus=installed_gpus(),
        docker=_output(["docker", "version", "--format", "{{.Server.Version}}"]),
        docker_gpus="nvidia" in (_output(["docker", "info", "--format", "{{json .Runtimes}}"]) or ""),
        compose=_output(["docker", "compose", "version", "--short"]),
        tensorrt_llm=_output([python, "-c", version]),
        tritonserver=server,
        cpp_backend=_CPP_BACKEND.is_dir(),
        system=platform.platform(),
        cores=os.cpu_count() or 1,
        memory_bytes=memory_bytes(),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        shared_memory_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
    )


def _output(command: Sequence[str]) -> str | None:
    """What a program prints; None if it fails, or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _existing(path: Path) -> str | None:
    return str(path) if path.is_file() else None
