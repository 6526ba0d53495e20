"""One batch from its lines to its files: checked, answered line by line, ended.

It can be left at any moment and begun again: what is done is in the journal, its state in the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

from conch.gateway.batches.asking import Answered, Asker
from conch.gateway.batches.file_store import File, FileStore
from conch.gateway.batches.journal import Journal
from conch.gateway.batches.lines import MOST_FINDINGS, Checked, Checker, Line, read
from conch.gateway.batches.store import Batch, BatchStore, Counts
from conch_build.plan_batches import Batches

_DISK_SECONDS = 2.0
"""Between two tries to write to a full disk."""
_LEFT = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "This request was not executed because the batch was cancelled.",
}

log = logging.getLogger("conch.gateway")


@dataclass(frozen=True)
class Shop:
    """What all batches share."""

    store: BatchStore
    files: FileStore
    asker: Asker
    plan: Batches
    line_bytes: int
    check_model: Callable[[str | None], None]
    """Raises RequestError for a name that is not served."""
    lenient: bool
    places: asyncio.Semaphore
    """Lines that run at once; whoever waits longest is next, so that batches take turns."""


class BatchRun:
    def __init__(self, batch: Batch, shop: Shop) -> None:
        self.batch = batch
        self.shop = shop
        self.draining = False
        """Take no more lines, and leave the rest to the next process."""
        self.cancelled = batch.status == "cancelling"
        self._journal: Journal | None = None
        self._told = Counts(batch.completed, batch.failed)
        self._fault: BaseException | None = None

    async def run(self) -> None:
        if self.batch.status == "validating" and not await self._validate():
            return
        if self.batch.ended or self.draining:
            return
        output, errors = (self.shop.files.path(name) for name in (self.batch.output_id, self.batch.error_id))
        self._journal = journal = await asyncio.to_thread(Journal, output, errors)
        try:
            await self._answer(journal)
            if not self.draining:
                await self._end(journal)
        except FileNotFoundError:
            await self._fail(Checked(), "file_missing", "The bytes of the input file are gone.")
        finally:
            await asyncio.to_thread(journal.close)

    async def tell(self) -> None:
        """Keep how far it is, where that has changed."""
        counts = self._journal.counts if self._journal else self._told
        if counts != self._told:
            self._told = counts
            await self.shop.store.count(self.batch.id, counts)

    @property
    def _expired(self) -> bool:
        return time.time() >= self.batch.expires_at

    def _goes_on(self) -> bool:
        return not (self.draining or self.cancelled or self._expired or self._fault)

    def _settle(self, task: asyncio.Task[None]) -> None:
        """A line that fails by a fault of our own ends the run, which is begun again."""
        self._fault = self._fault or task.exception()

    async def _validate(self) -> bool:
        """Whether its lines are to be run."""
        shop, batch = self.shop, self.batch
        checker = Checker(batch.endpoint, shop.line_bytes, shop.check_model, lenient=shop.lenient)
        checked = checker.checked
        try:
            async for lines in self._lines():
                await asyncio.to_thread(checker.add, lines)
                if self.draining or self.cancelled:
                    break
                if checked.total > shop.plan.lines:
                    text = f"The file has more than {shop.plan.lines} requests."
                    return await self._fail(Checked(), "too_many_requests", text)
        except FileNotFoundError:
            return await self._fail(checked, "file_missing", "The bytes of the input file are gone.")
        if self.draining:
            return False
        if not self.cancelled and not checked.total:
            return await self._fail(checked, "empty_file", "The file has no requests.")
        if not self.cancelled and checked.findings:
            return await self._fail(checked)
        model = next(iter(checked.models)) if len(checked.models) == 1 else None
        self.batch = await shop.store.begin(batch, checked.total, model)
        self.cancelled = self.batch.status == "cancelling"
        return True

    async def _fail(self, checked: Checked, code: str | None = None, text: str = "") -> Literal[False]:
        """Nothing of it is run any more."""
        if code is not None:
            checked.found(code, text)
        if len(checked.findings) == MOST_FINDINGS:
            checked.findings[-1] = {
                "code": "too_many_errors",
                "line": None,
                "message": f"There are more than {MOST_FINDINGS - 1} bad lines.",
                "param": None,
            }
        await self.shop.store.end(self.batch, "failed", Counts(), errors=checked.findings, total=checked.total or None)
        return False

    async def _answer(self, journal: Journal) -> None:
        """Run what has no answer yet, until no line is left or the batch does not go on."""
        running: set[asyncio.Task[None]] = set()
        try:
            await self._feed(journal, running)
        finally:
            if running:
                await asyncio.wait(running)
        if self._fault is not None:
            raise self._fault

    async def _feed(self, journal: Journal, running: set[asyncio.Task[None]]) -> None:
        async for lines in self._lines():
            for custom_id, body in map(Line.parsed, lines):
                if custom_id in journal.done:
                    continue
                await self.shop.places.acquire()
                if not self._goes_on():
                    return self.shop.places.release()
                task = asyncio.ensure_future(self._one(journal, custom_id, body))
                running.add(task)
                task.add_done_callback(running.discard)
                task.add_done_callback(self._settle)

    async def _one(self, journal: Journal, custom_id: str, body: dict[str, Any]) -> None:
        try:
            batch = self.batch
            answered = await self.shop.asker.ask(batch.endpoint, body, batch.owner, self._goes_on)
        finally:
            self.shop.places.release()
        if answered is not None:
            await self._write(journal, _answer_row(custom_id, answered))

    async def _end(self, journal: Journal) -> None:
        """Lines that were not run get an error row; then the files are whole."""
        outcome = "cancelled" if self.cancelled else "completed"
        if not self.cancelled and len(journal.done) < self.batch.total:
            outcome = "expired"
        if outcome == "completed":
            self.batch = await self.shop.store.finalize(self.batch)
            outcome = "cancelled" if self.batch.status == "cancelling" else outcome
        elif self.batch.total:
            async for lines in self._lines():
                for custom_id, _ in map(Line.parsed, lines):
                    if custom_id not in journal.done:
                        await self._write(journal, _left_row(custom_id, outcome))
        if self.draining and len(journal.done) < self.batch.total:
            return
        sizes = await asyncio.to_thread(journal.close)
        written = [
            self._file(file_id, "output" if file_id == self.batch.output_id else "errors", size)
            for file_id, size in zip((self.batch.output_id, self.batch.error_id), sizes, strict=True)
            if size
        ]
        await self.shop.store.end(self.batch, outcome, journal.counts, written)

    async def _write(self, journal: Journal, row: dict[str, Any]) -> None:
        """A full disk is waited for: the answer is there, and its place in the file will be."""
        while True:
            try:
                return journal.add(row)
            except OSError as error:
                log.warning("batch %s waits: %s", self.batch.id, error.strerror)
                if self.draining:
                    return
                await asyncio.sleep(_DISK_SECONDS)

    def _file(self, file_id: str, what: str, size: int) -> File:
        now = time.time()
        seconds = self.batch.output_seconds or self.shop.plan.expiry
        name = f"{self.batch.id}_{what}.jsonl"
        return File(file_id, self.batch.owner, name, size, "batch_output", now, now + seconds)

    async def _lines(self) -> AsyncIterator[list[Line]]:
        path = self.shop.files.path(self.batch.input_file_id)
        reader = read(path, self.shop.line_bytes)
        while lines := await asyncio.to_thread(next, reader, None):
            yield lines


def _answer_row(custom_id: str, answered: Answered) -> dict[str, Any]:
    response = {"status_code": answered.status, "request_id": answered.request_id, "body": answered.body}
    return {"id": _row_id(), "custom_id": custom_id, "response": response, "error": None}


def _left_row(custom_id: str, outcome: str) -> dict[str, Any]:
    error = {"code": f"batch_{outcome}", "message": _LEFT[outcome]}
    return {"id": _row_id(), "custom_id": custom_id, "response": None, "error": error}


def _row_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
