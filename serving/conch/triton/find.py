"""Where tritonserver is installed, and the parts that its python backend needs to run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from conch_build.errors import SetupError
from conch_build.extras import pip_install

SECURITY_FLOOR = (2, 59)
"""The first server version (25.07) with the fixes that a server others can reach must have."""

_CONTAINER = Path("/opt/tritonserver/bin/tritonserver")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class TritonInstall:
    """One tritonserver. `stub` is None where the backend folder holds its own."""

    binary: Path
    backends: Path
    stub: Path | None
    libraries: tuple[Path, ...]
    gpu: bool = False
    """Whether it is to use the machine's GPUs."""

    def environment(self) -> dict[str, str]:
        """This process's environment as the server needs it.

        The python backend takes site-packages from the first `python3` on PATH, so ours comes first.
        """
        libraries = [str(folder) for folder in self.libraries]
        inherited = os.environ.get("LD_LIBRARY_PATH")
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)]),
            "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([inherited] if inherited else [])]),
        }

    def version(self) -> tuple[int, ...]:
        """Asks the binary, which takes about a second: it prints its version before it misses its models."""
        command = [str(self.binary), "--model-repository=/nonexistent", "--allow-gpu-metrics=false"]
        done = subprocess.run(
            command,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        found = re.search(r"server_version\s*\|\s*([0-9.]+)", done.stdout)
        if found is None:
            lines = done.stdout.strip().splitlines() or ["no output"]
            raise SetupError(f"tritonserver does not run: {lines[-1]}", where=str(self.binary))
        return tuple(int(part) for part in found[1].split("."))


def find_tritonserver() -> TritonInstall:
    """The server of the `nvidia-pytriton` package, on PATH, or in NVIDIA's container, in this order.

    Raises SetupError that says what is missing: the server, a stub for this Python, libpython, or NumPy 1.x.
    """
    install = packaged_server() or installed_server()
    if install is None:
        raise SetupError("no tritonserver found", fix=f"{pip_install('cpu')}, or run in a tritonserver container.")
    return install


def installed_server() -> TritonInstall | None:
    """The server on PATH or in NVIDIA's container."""
    on_path = shutil.which("tritonserver")
    binary = Path(on_path).resolve() if on_path else _CONTAINER
    return TritonInstall(binary, binary.parents[1] / "backends", None, ()) if binary.is_file() else None


def find_libpython() -> Path:
    """The shared library of this Python, which Triton's python backend links against. Raises SetupError."""
    name = f"libpython{_PYTHON}.so.1.0"
    folders = [
        sysconfig.get_config_var("LIBDIR"),
        Path(sys.base_prefix) / "lib",
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
        f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]
    for folder in folders:
        if folder and (Path(folder) / name).is_file():
            return Path(folder) / name
    raise SetupError(
        f"{name} is missing: Triton's python backend needs the shared library of Python {_PYTHON}",
        fix=f"Install it (Debian: apt install libpython{_PYTHON}) or use a Python with --enable-shared.",
    )


def _check_numpy() -> None:
    """The packaged server is older than NumPy 2: the first text tensor would kill its python backend."""
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) >= 2:
        raise SetupError(f"Triton's python backend needs NumPy 1.x, not {version}", fix="pip install 'numpy<2'")


def packaged_server() -> TritonInstall | None:
    """The server of the `nvidia-pytriton` package. Raises SetupError when it lacks something."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    root = package / "tritonserver"
    stub = root / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        known = sorted(folder.name for folder in stub.parents[1].glob("3.*"))
        raise SetupError(
            f"nvidia-pytriton has no python backend for Python {_PYTHON}",
            fix=f"Use Python {' or '.join(known)}.",
        )
    _check_numpy()
    libraries = (find_libpython().parent, package.parent / "nvidia_pytriton.libs")
    return TritonInstall(root / "bin" / "tritonserver", root / "backends", stub, libraries)
