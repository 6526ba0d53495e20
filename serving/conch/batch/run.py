"""A batch from its first row to its output: what is answered is kept at once, and never asked again.

Knows of workers only that they are `Work`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from conch.batch.answers import Result
from conch.batch.checkpoint import Checkpoint, Totals
from conch.batch.output import write_output
from conch.batch.progress import BatchProgress
from conch.batch.rows import Input, Row
from conch_build.cost import Price


class Work(Protocol):
    """Turns rows into answers, in any order. Takes a row only when there is room for it; raises what would fail all."""

    def __call__(self, rows: Iterable[Row]) -> AsyncIterator[tuple[Row, Result]]: ...


async def run(source: Input, output: Path, checkpoint: Checkpoint, work: Work, price: Price | None) -> Totals:
    """Ask what is not answered, then write the output. The checkpoint stays where rows have failed.

    Raises ConchError, OSError.
    """
    todo = (row for row in source.rows() if checkpoint.lacks(row.number))
    progress = BatchProgress(source.count(), checkpoint.totals, price)
    with progress:
        async for row, result in work(todo):
            checkpoint.add(row.number, result)
            progress.show(checkpoint.totals)
    write_output(output, source, _answered(source, checkpoint))
    if not checkpoint.totals.failed:
        checkpoint.remove()
    return checkpoint.totals


def _answered(source: Input, checkpoint: Checkpoint) -> Iterator[tuple[Row, Result]]:
    for row in source.rows():
        yield row, checkpoint.result(row.number)
