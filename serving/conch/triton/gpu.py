"""The tritonserver of a machine with GPUs, and everything that a plan for them needs beside it.

All that is missing is told at once, before anything is built. Knows nothing of engines.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from conch.triton.find import TritonInstall, installed_server, packaged_server
from conch_build.errors import SetupError
from conch_build.gpu.cards import Gpu
from conch_build.gpu.installed import installed_gpus
from conch_build.launch import Arrangement
from conch_build.launch.commands import LLMAPI_LAUNCH
from conch_build.units import format_bytes

_SHARED_MEMORY = 1 << 30
_CPP_BACKEND = Path("tensorrtllm") / "libtriton_tensorrtllm.so"


def find_gpu_server(backend: str, arrangement: Arrangement, gpu: Gpu, image: str) -> TritonInstall:
    """A tritonserver that can serve `tensorrt` or `pytorch`, on PATH or in NVIDIA's container.

    Raises SetupError that names everything that is missing: `gpu` is what the engine is for, `image` the container
    that has the rest.
    """
    install = installed_server()
    if install is None and backend == "pytorch" and importlib.util.find_spec("pytriton"):
        install = packaged_server()
    missing = list(_missing(backend, arrangement, gpu, install))
    if missing or install is None:
        raise SetupError(
            f"this machine cannot serve a plan for the backend `{backend}`: {'; '.join(missing)}",
            fix=f"Run it inside {image}, or let `conch deploy compose` write the files for that container; "
            "`conch build --dry-run` shows every command.",
        )
    return replace(install, gpu=True)


def _missing(backend: str, arrangement: Arrangement, gpu: Gpu, install: TritonInstall | None) -> Iterator[str]:
    gpus = installed_gpus()
    if not gpus:
        yield "no NVIDIA GPU (nvidia-smi finds none)"
    elif others := sorted({f"{there.name} (sm{there.sm})" for there in gpus if there.sm != gpu.sm}):
        yield f"its GPUs are {', '.join(others)}, and the plan is for {gpu.label} (sm{gpu.sm})"
    elif len(gpus) < arrangement.gpus:
        yield f"{len(gpus)} GPUs ({gpus[0].name}), and it needs {arrangement.gpus}"
    if install is None:
        yield "no tritonserver, neither on PATH nor in /opt/tritonserver"
    elif backend == "tensorrt" and not (install.backends / _CPP_BACKEND).is_file():
        yield f"no backend `tensorrtllm` in {install.backends}"
    if backend == "pytorch" and importlib.util.find_spec("tensorrt_llm") is None:
        yield "no package `tensorrt_llm`"
    if arrangement.uses_mpi and shutil.which("mpirun") is None:
        yield "no mpirun"
    if arrangement.mode == "llmapi" and shutil.which(LLMAPI_LAUNCH) is None:
        yield f"no {LLMAPI_LAUNCH}"
    if Path("tensorrt_llm").is_dir():
        yield f"a folder `tensorrt_llm` in {Path.cwd()}, which hides the package of that name: start elsewhere"
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    if gpus and shared < _SHARED_MEMORY:
        yield f"{format_bytes(shared)} in /dev/shm, and it needs {format_bytes(_SHARED_MEMORY)} (--shm-size=2g)"
