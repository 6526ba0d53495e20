"""Batches and the states that they take, in the database. Knows nothing of lines and answers.

validating -> in_progress -> finalizing -> completed
    |             |-> expired
    |-> failed    |-> cancelling -> cancelled          (cancelling also from validating)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, Row, func, select

from conch.gateway.batches.file_store import ENDED, File, file_of, insert_file, new_file_id
from conch.gateway.batches.paging import Page, rows_of
from conch.gateway.batches.tables import batches
from conch.gateway.database import Database
from conch.gateway.errors import TooManyBatches
from conch_build.errors import NotFoundError, RequestError

_STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True)
class Usage:
    """Tokens of a batch's answers."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(Usage)))

    def as_dict(self) -> dict[str, Any]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True)
class Counts:
    """How far a batch is."""

    completed: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)

    def columns(self) -> dict[str, Any]:
        return {"completed": self.completed, "failed": self.failed, "usage": self.usage.as_dict()}


@dataclass(frozen=True)
class Batch:
    """A row, in the order of a batch's life."""

    id: str
    owner: str
    place: str
    """Of its files."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: float
    expires_at: float
    output_id: str
    error_id: str
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    status: str = "validating"
    moments: dict[str, float] = field(default_factory=dict)
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: dict[str, Any] | None = None
    errors: list[dict[str, Any]] | None = None

    @classmethod
    def new(cls, window_seconds: float, **given: Any) -> Batch:
        now = time.time()
        return cls(
            id=f"batch_{uuid.uuid4().hex}",
            created_at=now,
            expires_at=now + window_seconds,
            output_id=new_file_id(),
            error_id=new_file_id(),
            **given,
        )

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def as_dict(self) -> dict[str, Any]:
        """In OpenAI's shape: its files are told of once they are whole."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_id if self.ended and self.completed else None,
            "error_file_id": self.error_id if self.ended and self.failed else None,
            "created_at": int(self.created_at),
            "expires_at": int(self.expires_at),
            **{f"{state}_at": int(self.moments[state]) if state in self.moments else None for state in _STATES},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": self.usage,
            "metadata": self.metadata,
        }


class BatchStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, batch: Batch, most: int) -> None:
        """Raises NotFoundError without its file, RequestError for a file of another purpose, TooManyBatches over
        `most` that have not ended."""

        def work(connection: Connection) -> None:
            file = file_of(connection, batch.input_file_id, batch.owner, "input_file_id")
            if file.purpose != "batch":
                text = f"'{file.id}' has the purpose {file.purpose}; a batch reads files with the purpose batch"
                raise RequestError(text, param="input_file_id", code="invalid_purpose")
            unfinished = (batches.c.owner == batch.owner, batches.c.status.not_in(ENDED))
            if int(connection.execute(select(func.count()).where(*unfinished)).scalar_one()) >= most:
                raise TooManyBatches(most)
            connection.execute(batches.insert().values(asdict(batch)))

        await self._database.run(work)

    async def get(self, batch_id: str, owner: str) -> Batch:
        """Raises NotFoundError."""
        return await self._database.read(lambda connection: _one(connection, batch_id, owner))

    async def page(self, owner: str, page: Page) -> tuple[list[Row[Any]], bool]:
        """Raises RequestError."""
        return await self._database.read(
            lambda connection: rows_of(connection, batches, page, batches.c.owner == owner)
        )

    async def unfinished(self, place: str) -> list[Batch]:
        """Of all owners, whose files are at that place, the oldest first."""
        query = (
            select(batches)
            .where(batches.c.place == place, batches.c.status.not_in(ENDED))
            .order_by(batches.c.created_at)
        )
        return await self._database.read(lambda connection: [of_row(row) for row in connection.execute(query)])

    async def cancel(self, batch_id: str, owner: str) -> Batch:
        """Raises NotFoundError, and RequestError for one that has ended."""

        def work(connection: Connection) -> Batch:
            batch = _one(connection, batch_id, owner, lock=True)
            if batch.ended or batch.status == "finalizing":
                text = f"Cannot cancel a batch with the status '{batch.status}'"
                raise RequestError(text, param="batch_id", code="invalid_state")
            if batch.status != "cancelling":
                _change(connection, batch, "cancelling")
            return _one(connection, batch_id, owner)

        return await self._database.run(work)

    async def begin(self, batch: Batch, total: int, model: str | None) -> Batch:
        """Its lines are good and may run, unless it was cancelled meanwhile."""
        return await self._move(batch, ("validating",), "in_progress", total=total, model=model)

    async def finalize(self, batch: Batch) -> Batch:
        """No line is left, unless it was cancelled before."""
        return await self._move(batch, ("in_progress",), "finalizing")

    async def end(
        self,
        batch: Batch,
        status: str,
        counts: Counts,
        written: Sequence[File] = (),
        errors: list[dict[str, Any]] | None = None,
        total: int | None = None,
    ) -> None:
        """Its last state, and with it the files that it wrote."""

        def work(connection: Connection) -> None:
            current = _one(connection, batch.id, batch.owner, lock=True)
            if current.ended:
                return
            for file in written:
                insert_file(connection, file)
            totals = {} if total is None else {"total": total}
            _change(connection, current, status, **counts.columns(), **totals, errors=errors)

        await self._database.run(work)

    async def count(self, batch_id: str, counts: Counts) -> None:
        """How far it is."""
        change = batches.update().where(batches.c.id == batch_id).values(counts.columns())
        await self._database.run(lambda connection: connection.execute(change))

    async def _move(self, batch: Batch, before: Sequence[str], status: str, **values: Any) -> Batch:
        def work(connection: Connection) -> Batch:
            current = _one(connection, batch.id, batch.owner, lock=True)
            if current.status in before:
                _change(connection, current, status, **values)
            return _one(connection, batch.id, batch.owner)

        return await self._database.run(work)


def of_row(row: Row[Any]) -> Batch:
    return Batch(**row._mapping)


def _one(connection: Connection, batch_id: str, owner: str, *, lock: bool = False) -> Batch:
    query = select(batches).where(batches.c.id == batch_id, batches.c.owner == owner)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"No batch with the id '{batch_id[:80]}'", param="batch_id", code="batch_not_found")
    return of_row(row)


def _change(connection: Connection, batch: Batch, status: str, **values: Any) -> None:
    moments = {**batch.moments, status: time.time()}
    change = batches.update().where(batches.c.id == batch.id)
    connection.execute(change.values(status=status, moments=moments, **values))
