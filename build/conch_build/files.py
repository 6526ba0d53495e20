"""Files that may not be what their name says, and folders that appear whole or not at all.

Knows nothing of models: only how a download goes wrong and how to write without leaving half of something.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conch_build.disk import flock
from conch_build.errors import CheckpointError
from conch_build.units import format_bytes

_HEAD_BYTES = 512
_CHUNK_BYTES = 1 << 22


def home() -> Path:
    """Conch's own folder: `$CONCH_HOME`, else `.conch` under the current directory."""
    return Path(os.environ.get("CONCH_HOME") or ".conch").absolute()


def expanded(value: str) -> Path:
    """A path with its `~` resolved; that of a user who is not known stays as it is written, and is not found."""
    with suppress(RuntimeError):
        return Path(value).expanduser()
    return Path(value)


def impostor(path: Path) -> CheckpointError | None:
    """What stands in the file's place: nothing, a git-lfs pointer or a web page. None: none of these."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        return CheckpointError(f"cannot be read: {error.strerror}", where=str(path), rule="checkpoint.unreadable")
    if size == 0:
        return CheckpointError(
            "is empty (0 bytes): its download never started",
            where=str(path),
            fix="Download it again.",
            rule="checkpoint.empty-file",
        )
    if head.startswith(b"version https://git-lfs"):
        return CheckpointError(
            f"is a git-lfs pointer ({size} bytes), not the file itself",
            where=str(path),
            fix="Run `git lfs pull` in the repository it came from, or download the file.",
            rule="checkpoint.git-lfs-pointer",
        )
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return CheckpointError(
            f"is a web page ({size} bytes), probably an error answer of the download",
            where=str(path),
            fix="Download it again, signed in if the model asks for it.",
            rule="checkpoint.web-page",
        )
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises CheckpointError naming the file, its size and the cause."""
    if error := impostor(path):
        raise error
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(
            f"is not JSON ({format_bytes(path.stat().st_size)}): {error}",
            where=str(path),
            fix="Download it again.",
            rule="checkpoint.invalid-json",
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            "must hold a JSON object",
            where=str(path),
            fix="Download it again.",
            rule="checkpoint.invalid-json",
        )
    return value


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def made_once(target: Path) -> Iterator[Path | None]:
    """Fill a folder exactly once: gives a scratch folder that becomes `target`, or None if `target` is there.

    Processes wait for each other; whatever is raised, or a kill halfway, leaves no `target`.
    """
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with flock(target.with_name(f".{target.name}.lock"), fcntl.LOCK_EX):
        if target.exists():
            yield None
            return
        for stale in target.parent.glob(f".{target.name}.tmp-*"):
            shutil.rmtree(stale, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
        try:
            yield scratch
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
