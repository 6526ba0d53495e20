"""Whether this machine can build and serve: one sentence a check, and what to do. Changes nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conch.triton import SECURITY_FLOOR, find_tritonserver
from conch.triton.find import find_libpython
from conch_build.errors import ConchError
from conch_build.extras import EXTRAS, pip_install
from conch_build.machine import memory_bytes
from conch_build.units import format_bytes

_SERVED = {"HTTP": 8000, "gRPC": 8001, "metrics": 8002, "gateway": 8080}
_MEMORY = 4 << 30
_DISK = 4 << 30
_SHARED_MEMORY = 64 << 20


@dataclass(frozen=True)
class Check:
    """One thing looked at. `fix` is None where there is nothing to do."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def checks() -> list[Check]:
    """All of them, in the order in which they matter."""
    return [
        _python(),
        _numpy(),
        _caught("libpython", lambda: str(find_libpython())),
        _tritonserver(),
        _openvino(),
        _cpu(),
        _ports(),
        _memory(),
        _disk(),
        _shared_memory(),
        *_extras(),
    ]


def _python() -> Check:
    version = platform.python_version()
    ok = (3, 10) <= sys.version_info[:2] <= (3, 12)
    return Check("python", ok, f"Python {version}", None if ok else "Use Python 3.10, 3.11 or 3.12.")


def _numpy() -> Check:
    version = _installed("numpy")
    if version is None:
        return Check("numpy", False, "NumPy is missing", "pip install 'numpy<2'")
    if int(version.split(".")[0]) >= 2:
        what = f"NumPy {version} kills Triton's python backend at the first text"
        return Check("numpy", False, what, "pip install 'numpy<2'")
    return Check("numpy", True, f"NumPy {version}")


def _tritonserver() -> Check:
    def found() -> str:
        install = find_tritonserver()
        version = install.version()
        text = f"tritonserver {'.'.join(map(str, version))} with a stub for this Python: {install.binary}"
        if version < SECURITY_FLOOR:
            text += "; older than the security fixes of 25.07 (2.59), so it is kept on loopback"
        return text

    return _caught("tritonserver", found)


def _openvino() -> Check:
    version = _installed("openvino")
    if version is None:
        return Check("openvino", False, "OpenVINO is missing", pip_install("cpu"))
    return Check("openvino", True, f"OpenVINO {version}")


def _cpu() -> Check:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    flags = next((set(line.split()) for line in text.splitlines() if line.startswith("flags")), set())
    found = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if name in flags]
    detail = f"{os.cpu_count()} cores, {platform.machine()} with {', '.join(found) or 'no vectors'}"
    ok = "avx2" in flags
    return Check("cpu", ok, detail, None if ok else "The CPU engine needs an x86-64 CPU with AVX2.")


def _ports() -> Check:
    taken = [f"{port} ({name})" for name, port in _SERVED.items() if not _is_free(port)]
    if taken:
        return Check(
            "ports",
            False,
            f"in use: {', '.join(taken)}",
            "Stop what listens there (a running Conch may), or set ports in the plan.",
        )
    return Check("ports", True, f"{', '.join(map(str, _SERVED.values()))} are free")


def _memory() -> Check:
    total = memory_bytes()
    ok = total >= _MEMORY
    fix = None if ok else f"Building the sample takes about {format_bytes(_MEMORY)}; lower engine.kv_cache.size."
    return Check("memory", ok, f"{format_bytes(total)} of memory", fix)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    ok = free >= _DISK
    return Check("disk", ok, f"{format_bytes(free)} free in {Path.cwd()}", None if ok else "Free some space.")


def _shared_memory() -> Check:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Check(
            "/dev/shm",
            False,
            "there is no /dev/shm",
            "Mount a tmpfs there: Triton's python backend needs it.",
        )
    ok = size >= _SHARED_MEMORY
    fix = None if ok else f"Give it {format_bytes(_SHARED_MEMORY)} or more (docker run --shm-size=256m)."
    return Check("/dev/shm", ok, f"{format_bytes(size)} of shared memory", fix)


def _extras() -> Iterator[Check]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        detail = f"missing: {', '.join(missing)}" if missing else "complete"
        yield Check(f"conch[{extra}]", not missing, detail, pip_install(extra) if missing else None)


def _caught(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except ConchError as error:
        return Check(name, False, error.what, error.fix)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
