"""What the store asks of the system: locks that die with their holder, durable writes, plain errors."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conch_build.errors import StoreError


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def flock(path: Path, operation: int, *, directory: bool = False) -> Iterator[bool]:
    """Whether the lock was had; freed on leaving. False too when the locked folder is no longer at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY if directory else os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        raise StoreError("no such artifact", where=f"{path.parent.name}/{path.name}") from None
    try:
        try:
            fcntl.flock(descriptor, operation)
            held = os.path.samestat(os.fstat(descriptor), path.stat())
        except (BlockingIOError, FileNotFoundError):
            held = False
        yield held
    finally:
        os.close(descriptor)


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """What the disk refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing_parent(path)).free
            fix = "Free some space (`conch artifacts remove`) or set CONCH_HOME to another disk."
            raise StoreError(f"the disk is full ({free >> 20} MiB free)", where=where, fix=fix) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            fix = "Make it writable or set CONCH_HOME to a folder that is."
            raise StoreError(f"is not writable: {error.strerror}", where=where, fix=fix) from None
        raise


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
