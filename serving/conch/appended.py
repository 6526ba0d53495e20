"""A file of JSON lines that grows by whole lines and is read again after a kill. Knows nothing of what they say.

A kill can cut off the last line; a full disk leaves none at all. Both leave every line before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Appended:
    def __init__(self, path: Path) -> None:
        """Read what is `recovered` before anything is appended. Raises OSError."""
        self.path = path
        self.size = 0
        """Bytes of whole lines."""
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._closed = False

    def recovered(self) -> Iterator[tuple[int, Any]]:
        """Where each line begins, and what it says; what follows the last good one is cut off."""
        with self.path.open("rb") as file:
            for line in file:
                try:
                    said = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                start, self.size = self.size, self.size + len(line)
                yield start, said
        os.ftruncate(self.file, self.size)

    def append(self, said: Any) -> int:
        """Where the new line begins. Raises OSError when it cannot be kept; then nothing of it is."""
        line = json.dumps(said, ensure_ascii=False).encode() + b"\n"
        start, written = self.size, 0
        try:
            while written < len(line):
                written += os.pwrite(self.file, line[written:], start + written)
        except OSError:
            os.ftruncate(self.file, start)
            raise
        self.size += len(line)
        return start

    def at(self, start: int) -> Any:
        """What the line says that begins there."""
        with self.path.open("rb") as file:
            file.seek(start)
            return json.loads(file.readline())

    def close(self) -> None:
        """With all of it on the disk."""
        if not self._closed:
            self._closed = True
            os.fsync(self.file)
            os.close(self.file)
