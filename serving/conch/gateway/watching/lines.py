"""Lines to a file or to stdout, by a thread: who writes them never waits for a disk or a reader.

A file that was moved away or removed by a rotation is opened anew, at the next line or when told to (SIGHUP). What
cannot be written in time is dropped, and counted. Knows nothing of what the lines say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from conch_build.errors import SetupError

log = logging.getLogger("conch.gateway")

_MOST_WAITING = 10_000
_CLOSE_SECONDS = 2.0


def check_log(path: Path) -> None:
    """Raises SetupError for a file that cannot be written."""
    try:
        path.open("a").close()
    except OSError as error:
        fix = "Set `serving.gateway.access_log` to a file that can be written, to stdout, or to off."
        raise SetupError(f"cannot write: {error.strerror}", where=str(path), fix=fix) from None


class LineWriter:
    def __init__(self, path: Path | None, on_drop: Callable[[int], None]) -> None:
        """None: stdout. `on_drop` is told how many lines were lost. Raises SetupError for a file it cannot open."""
        self._on_drop = on_drop
        self._complained = False
        if path is not None:
            check_log(path)
        self._path = path
        self._reopen = False
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._file = self._open()
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._drop(1)

    def reopen(self) -> None:
        """Open the file anew before the next line."""
        self._reopen = True

    def close(self) -> None:
        """Write what waits, unless that takes too long."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            batch = [self._lines.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _MOST_WAITING:
                    batch.append(self._lines.get_nowait())
            over = None in batch
            lines = [line for line in batch if line is not None]
            try:
                self._current().write("".join(f"{line}\n" for line in lines))
                self._file.flush()
            except (OSError, ValueError):  # ValueError: stdout was closed
                self._drop(len(lines))
                self._reopen = True  # what it holds back must not pile up
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _drop(self, count: int) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the access log cannot be written as fast as requests come; lines are dropped")
        self._on_drop(count)

    def _current(self) -> TextIO:
        if self._path is not None and (self._reopen or self._is_gone(self._path)):
            self._reopen = False
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = self._open()
        return self._file

    def _is_gone(self, path: Path) -> bool:
        if self._file.closed:
            return True
        try:
            there, ours = path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _open(self) -> TextIO:
        return sys.stdout if self._path is None else self._path.open("a", encoding="utf-8")
