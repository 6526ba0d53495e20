"""The input of a batch: rows of JSONL, CSV or Parquet, one after the other. Knows nothing of prompts.

A line that cannot be read is a row with a problem, as it must have its place in the output.
"""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conch_build.errors import InputError
from conch_build.extras import require

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    number: int
    """From 0, in the order of the input."""
    columns: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    """Why it cannot be asked."""


class Input(ABC):
    """A table in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All of them, from the first one. Raises InputError for a file that is not of its kind."""

    def columns(self) -> list[str]:
        """Of the table, or of its first good row where each row has its own."""
        return next((list(row.columns) for row in self.rows() if row.problem is None), [])

    def count(self) -> int:
        return sum(1 for _ in self.rows())


class JsonLines(Input):
    """Blank lines are none."""

    def rows(self) -> Iterator[Row]:
        number = 0
        with self.path.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf") if line_number == 1 else line
                if text.strip():
                    yield _json_row(number, text, line_number)
                    number += 1


class Csv(Input):
    """With a line of column names at its start."""

    def rows(self) -> Iterator[Row]:
        csv.field_size_limit(sys.maxsize)
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            try:
                names = next(reader, [])
                if len(set(names)) < len(names):
                    raise InputError("two columns have the same name", where=str(self.path))
                for number, values in enumerate(values for values in reader if values):
                    if len(values) == len(names):
                        yield Row(number, dict(zip(names, values, strict=True)))
                    else:
                        problem = f"it has {len(values)} values and not {len(names)}"
                        yield Row(number, dict(zip(names, values, strict=False)), problem)
            except csv.Error as error:
                raise InputError(f"is no CSV: line {reader.line_num}: {error}", where=str(self.path)) from None
            except UnicodeDecodeError:
                fix = "Write it as UTF-8."
                raise InputError(f"line {reader.line_num + 1} is not UTF-8", where=str(self.path), fix=fix) from None


class Parquet(Input):
    def __init__(self, path: Path) -> None:
        require("Parquet", "batch", "pyarrow")
        super().__init__(path)

    def rows(self) -> Iterator[Row]:
        number = 0
        for batch in self._file().iter_batches(_ROWS_AT_ONCE):
            for columns in batch.to_pylist():
                yield Row(number, columns)
                number += 1

    def columns(self) -> list[str]:
        return list(self._file().schema_arrow.names)

    def count(self) -> int:
        return int(self._file().metadata.num_rows)

    def _file(self) -> Any:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        try:
            return ParquetFile(self.path)
        except (ArrowInvalid, OSError) as error:
            raise InputError(f"is no Parquet file: {error}", where=str(self.path)) from None


KINDS: dict[str, type[Input]] = {".jsonl": JsonLines, ".ndjson": JsonLines, ".csv": Csv, ".parquet": Parquet}


def open_input(path: Path) -> Input:
    """Raises InputError."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"is of no kind that is read: {', '.join(KINDS)}", where=str(path))
    if not path.is_file():
        raise InputError("there is no such file", where=str(path))
    return kind(path)


def _json_row(number: int, line: bytes, line_number: int) -> Row:
    try:
        columns = json.loads(line)
    except (ValueError, RecursionError):
        return Row(number, problem=f"line {line_number} is not JSON")
    if not isinstance(columns, dict):
        return Row(number, problem=f"line {line_number} is not a JSON object")
    return Row(number, columns)
