"""The output of a batch: the input's rows in their order, each with its answer or with why there is none.

It appears whole, or not at all. Knows nothing of how answers came.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from conch.batch.answers import Result
from conch.batch.rows import Input, Parquet, Row
from conch_build.errors import InputError
from conch_build.extras import require

ADDED = ("answer", "answer_error", "answer_prompt_tokens", "answer_completion_tokens", "answer_parts")
"""Columns that the output has beside the input's."""
_ROWS_AT_ONCE = 1024
_KINDS = (".jsonl", ".ndjson", ".csv", ".parquet")

Answered = Iterable[tuple[Row, Result]]


def check_output(path: Path, source: Input, columns: Sequence[str], *, again: bool) -> None:
    """Raises InputError for what cannot be written from that input. `again`: over what an earlier run wrote."""
    kind = path.suffix.lower()
    if kind not in _KINDS:
        raise InputError(f"is of no kind that is written: {', '.join(_KINDS)}", where=str(path))
    if path.resolve() == source.path.resolve():
        raise InputError("is the input itself", where=str(path))
    if not path.parent.is_dir():
        raise InputError("its folder is not there", where=str(path))
    if again and not path.with_name(f"{path.name}.progress").exists():
        raise InputError("no earlier run has left rows that failed", where=str(path))
    if path.exists() and not again:
        fix = "Remove it, or give another output; --retry-failed asks the rows again that failed."
        raise InputError("is there already", where=str(path), fix=fix)
    if taken := sorted(set(ADDED) & set(columns)):
        fix = "Rename it in the input: the output has one of its own."
        raise InputError(f"has a column {taken[0]!r}", where=str(source.path), fix=fix)
    if kind == ".parquet":
        require("Parquet", "batch", "pyarrow")
        if source.path.suffix.lower() in (".jsonl", ".ndjson"):
            fix = "Write JSONL, or give the input as Parquet or CSV."
            raise InputError("JSON rows have no types that Parquet could take over", where=str(path), fix=fix)


def write_output(path: Path, source: Input, answered: Answered) -> None:
    """Raises OSError; then there is nothing at `path`."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        {".csv": _csv, ".parquet": _parquet}.get(path.suffix.lower(), _jsonl)(partial, source, answered)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _jsonl(path: Path, source: Input, answered: Answered) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row, result in answered:
            line = {**row.columns, **dict(zip(ADDED, _values(result), strict=True))}
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


def _csv(path: Path, source: Input, answered: Answered) -> None:
    names = source.columns()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *ADDED])
        for row, result in answered:
            values = [row.columns.get(name) for name in names]
            writer.writerow([_as_text(value) for value in (*values, *_values(result))])


def _parquet(path: Path, source: Input, answered: Answered) -> None:
    import pyarrow
    import pyarrow.parquet

    if isinstance(source, Parquet):
        schema = pyarrow.parquet.read_schema(source.path)
    else:
        schema = pyarrow.schema([(name, pyarrow.string()) for name in source.columns()])
    for name in ADDED:
        kind = pyarrow.string() if name in ADDED[:2] else pyarrow.int64()
        schema = schema.append(pyarrow.field(name, kind))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for row, result in answered:
            answer, *others = _values(result)
            added = (answer if answer is None else _as_text(answer), *others)
            rows.append({**row.columns, **dict(zip(ADDED, added, strict=True))})
            if len(rows) == _ROWS_AT_ONCE:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))


def _values(result: Result) -> tuple[Any, ...]:
    """In the order of ADDED."""
    return result.answer, result.error, result.prompt_tokens, result.completion_tokens, result.parts


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
