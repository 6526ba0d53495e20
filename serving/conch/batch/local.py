"""Many rows at once in this process, before one gateway: the `Work` that needs no cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from conch.batch.answers import Answerer, Result
from conch.batch.rows import Row


class LocalWork:
    def __init__(self, answerer: Answerer, most: int) -> None:
        """`most`: rows in hand at once; how many of them ask is the throttle's."""
        self._answerer = answerer
        self._most = most

    async def __call__(self, rows: Iterable[Row]) -> AsyncIterator[tuple[Row, Result]]:
        """Answers as they come. The first error that is not a row's ends all of it."""
        waiting = iter(rows)
        running: dict[asyncio.Task[Result], Row] = {}
        try:
            while True:
                while len(running) < self._most and (row := next(waiting, None)) is not None:
                    running[asyncio.ensure_future(self._answerer.answer(row))] = row
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
