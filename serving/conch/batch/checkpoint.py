"""What is answered so far, in a file beside the output: a line for each answer, its first one says of which batch.

One process has it at a time. Knows nothing of models; a row that is asked again has its last line count.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from conch.appended import Appended
from conch.batch.answers import Result
from conch_build.errors import InputError, SetupError

_HEAD = b'{"batch": '


@dataclass(frozen=True)
class Totals:
    """Of all runs of a batch."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return self.answered + self.failed

    def plus(self, result: Result, sign: int = 1) -> Totals:
        good = result.error is None
        return Totals(
            self.answered + sign * good,
            self.failed + sign * (not good),
            self.prompt_tokens + sign * result.prompt_tokens,
            self.completion_tokens + sign * result.completion_tokens,
            self.seconds,
        )


class Checkpoint:
    """`with Checkpoint(output, batch) as checkpoint:`; `batch`: what makes it this one and no other."""

    def __init__(self, output: Path, batch: Mapping[str, Any], *, retry_failed: bool = False) -> None:
        """Raises InputError when it is another batch's, or in use."""
        self.path = output.with_name(f"{output.name}.progress")
        self._batch = dict(batch)
        self._retry_failed = retry_failed
        self._lines: dict[int, int] = {}
        """Rows with an answer, and where its line begins."""
        self._failed: set[int] = set()
        self._earlier = 0.0
        self._began = time.monotonic()
        self._totals = Totals()

    def __enter__(self) -> Checkpoint:
        self._file = Appended(self.path)
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def lacks(self, row: int) -> bool:
        """Whether the row is still to be asked."""
        return row not in self._lines or (self._retry_failed and row in self._failed)

    def add(self, row: int, result: Result) -> None:
        """Raises SetupError when the disk is full; then nothing of this answer is kept, and all that came before is."""
        line = {"row": row, **asdict(result), "elapsed": round(self.seconds, 3)}
        try:
            start = self._file.append(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            fix = "Nothing is lost: make room, and run the same command again."
            raise SetupError("the disk is full", where=str(self.path), fix=fix) from None
        if row in self._lines:  # it failed, and was asked again
            self._totals = self._totals.plus(self.result(row), -1)
        self._take(row, result, start)

    def result(self, row: int) -> Result:
        return _result(self._file.at(self._lines[row]))

    @property
    def seconds(self) -> float:
        """Of this run and of those before it."""
        return self._earlier + time.monotonic() - self._began

    @property
    def totals(self) -> Totals:
        return Totals(**{**asdict(self._totals), "seconds": self.seconds})

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file.file), self.path.stat()):
                raise BlockingIOError  # it ended just now, and took its file away
        except (BlockingIOError, FileNotFoundError):
            fix = "Wait for it, or give another output."
            raise InputError("another `conch batch` writes this output", where=str(self.path), fix=fix) from None

    def _read(self) -> None:
        with self.path.open("rb") as file:
            if not _HEAD.startswith(file.read(len(_HEAD))):
                fix = "Move it away, or give another output."
                raise InputError("is not of `conch batch`", where=str(self.path), fix=fix)
        lines = self._file.recovered()
        _, first = next(lines, (0, None))
        if first is None:
            self._file.append({"batch": self._batch})
            return
        self._compare(first.get("batch", {}))
        for start, line in lines:
            row, result = line["row"], _result(line)
            if row in self._lines:
                self._totals = self._totals.plus(self.result(row), -1)
            self._take(row, result, start)
            self._earlier = max(self._earlier, line["elapsed"])

    def _compare(self, before: Mapping[str, Any]) -> None:
        names = {*before, *self._batch}
        other = sorted(name for name in names if before.get(name) != self._batch.get(name))
        if other:
            fix = "Give the same as before, or another output; removing that file forgets what was answered."
            raise InputError(f"was begun with another {', '.join(other)}", where=str(self.path), fix=fix)

    def _take(self, row: int, result: Result, start: int) -> None:
        self._lines[row] = start
        self._totals = self._totals.plus(result)
        if result.error is None:
            self._failed.discard(row)
        else:
            self._failed.add(row)


def _result(line: Mapping[str, Any]) -> Result:
    return Result(**{name: value for name, value in line.items() if name not in ("row", "elapsed")})
