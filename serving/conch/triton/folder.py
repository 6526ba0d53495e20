"""The backend folder that a server starts with: the installed backends and the stub of the running Python."""

from __future__ import annotations

import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

from conch.triton.find import TritonInstall


def backend_folder(install: TritonInstall, run_folder: Path) -> Path:
    """The folder, written only if it is not there as it should be; complete or absent, never half."""
    if install.stub is None:
        return install.backends
    folder = run_folder / f"backends-{sys.version_info.major}.{sys.version_info.minor}"
    if _is_current(folder, install):
        return folder
    run_folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=run_folder, prefix=".backends-"))
    fresh.chmod(0o755)
    shutil.copytree(install.backends, fresh, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(install.stub, fresh / "python" / install.stub.name)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        fresh.replace(folder)
    except OSError:  # another server wrote it meanwhile
        shutil.rmtree(fresh)
    return folder


def _is_current(folder: Path, install: TritonInstall) -> bool:
    assert install.stub is not None
    pairs = [(install.stub, folder / "python" / install.stub.name)]
    pairs += [
        (path, folder / path.relative_to(install.backends))
        for path in install.backends.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return all(copy.is_file() and filecmp.cmp(original, copy) for original, copy in pairs)
