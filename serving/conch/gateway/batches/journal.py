"""The answers of a batch as they come, in its output and its error file, which are read again after a kill.

A line is one write. What a kill has cut off at the end of a file is taken off again, and its line answered anew, so
that in the end each custom id has one line in one of the two. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conch.appended import Appended
from conch.gateway.batches.store import Counts, Usage


class Journal:
    def __init__(self, output: Path, errors: Path) -> None:
        """Raises OSError."""
        self.done: set[str] = set()
        """Custom ids that have their line."""
        self.counts = Counts()
        self._files = [Appended(path) for path in (output, errors)]
        for file in self._files:
            for _, row in file.recovered():
                self._count(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """An output line in OpenAI's shape. Raises OSError when it cannot be kept; then nothing of it is."""
        self._files[0 if _is_good(row) else 1].append(row)
        self._count(row)

    def close(self) -> tuple[int, int]:
        """Both files are on the disk, or gone where they are empty; their bytes."""
        for file in self._files:
            file.close()
            if not file.size:
                file.path.unlink(missing_ok=True)
        output, errors = (file.size for file in self._files)
        return output, errors

    def _count(self, row: Mapping[str, Any]) -> None:
        good = _is_good(row)
        self.done.add(row["custom_id"])
        self.counts = Counts(
            self.counts.completed + good,
            self.counts.failed + (not good),
            self.counts.usage + _usage(row["response"]["body"]) if good else self.counts.usage,
        )


def _is_good(row: Mapping[str, Any]) -> bool:
    return row["response"] is not None and row["response"]["status_code"] == 200


def _usage(body: Mapping[str, Any]) -> Usage:
    """Of an answer of any endpoint."""
    told = body.get("usage") or {}
    prefixes = ("input", "output") if "input_tokens" in told else ("prompt", "completion")
    given, made = (told.get(f"{prefix}_tokens_details") or {} for prefix in prefixes)
    return Usage(
        told.get(f"{prefixes[0]}_tokens", 0),
        given.get("cached_tokens", 0),
        told.get(f"{prefixes[1]}_tokens", 0),
        made.get("reasoning_tokens", 0),
    )
