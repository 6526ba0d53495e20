"""The files of callers: a row each in the database, their bytes in a folder under their ids.

Knows nothing of what is in them. Each belongs to a key, and is not there for another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, func, select

from conch.gateway.batches.paging import Page, rows_of
from conch.gateway.batches.tables import batches, files
from conch.gateway.database import Database
from conch_build.errors import NotFoundError, RequestError

ENDED = ("completed", "failed", "expired", "cancelled")
"""States of a batch that nothing follows."""
_ORPHAN_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class File:
    id: str
    owner: str
    filename: str
    bytes: int
    purpose: str
    created_at: float
    expires_at: float

    def as_dict(self) -> dict[str, Any]:
        """In OpenAI's shape."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at),
            "expires_at": int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class FileStore:
    def __init__(self, database: Database, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.database = database
        self.folder = folder
        self.place = _place_of(folder)
        """Names the folder to all gateways that share the database, some of which may have another one."""

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file lie; `file_id` is one that this store gave."""
        return self.folder / file_id

    async def add(self, file: File) -> None:
        await self.database.run(lambda connection: insert_file(connection, file))

    async def get(self, file_id: str, owner: str, param: str = "file_id") -> File:
        """Raises NotFoundError."""
        return await self.database.read(lambda connection: file_of(connection, file_id, owner, param))

    async def page(self, owner: str, page: Page, purpose: str | None) -> tuple[list[Row[Any]], bool]:
        """Raises RequestError."""
        conditions = [files.c.owner == owner, files.c.expires_at > time.time()]
        if purpose is not None:
            conditions.append(files.c.purpose == purpose)
        return await self.database.read(lambda connection: rows_of(connection, files, page, *conditions))

    async def stored_bytes(self, owner: str) -> int:
        query = select(func.sum(files.c.bytes)).where(files.c.owner == owner)
        return int(await self.database.read(lambda connection: connection.execute(query).scalar()) or 0)

    async def remove(self, file_id: str, owner: str) -> None:
        """Raises NotFoundError, and RequestError while a batch needs it."""

        def work(connection: Connection) -> None:
            file_of(connection, file_id, owner, "file_id")
            needs = select(batches.c.id).where(batches.c.input_file_id == file_id, batches.c.status.not_in(ENDED))
            if batch := connection.execute(needs).scalar():
                text = f"The file is the input of {batch}, which has not ended; cancel that first"
                raise RequestError(text, param="file_id", code="file_in_use")
            connection.execute(files.delete().where(files.c.id == file_id))

        await self.database.run(work)
        self.path(file_id).unlink(missing_ok=True)

    async def sweep(self) -> None:
        """Remove the files whose time is over, but for those that a batch still reads."""

        def work(connection: Connection) -> list[str]:
            needed = select(batches.c.input_file_id).where(batches.c.status.not_in(ENDED))
            over = (files.c.expires_at <= time.time(), files.c.id.not_in(needed))
            gone = list(connection.execute(select(files.c.id).where(*over)).scalars())
            connection.execute(files.delete().where(files.c.id.in_(gone)))
            return gone

        for file_id in await self.database.run(work):
            self.path(file_id).unlink(missing_ok=True)

    async def sweep_orphans(self) -> None:
        """Remove the bytes that a kill has left without a row: those that are old and that no row names."""

        def known(connection: Connection) -> set[str]:
            unfinished = batches.c.status.not_in(ENDED)
            written = select(batches.c.output_id).where(unfinished), select(batches.c.error_id).where(unfinished)
            queries = (select(files.c.id), *written)
            return {name for query in queries for name in connection.execute(query).scalars()}

        latest = time.time() - _ORPHAN_SECONDS
        old = await asyncio.to_thread(lambda: [path for path in self.folder.iterdir() if path.stat().st_mtime < latest])
        kept = await self.database.read(known)
        for path in old:
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _place_of(folder: Path) -> str:
    """Whoever comes first names it."""
    name = folder.parent / "files.id"
    with tempfile.NamedTemporaryFile("w", dir=folder.parent) as mine:
        mine.write(uuid.uuid4().hex)
        mine.flush()
        with contextlib.suppress(FileExistsError):
            os.link(mine.name, name)
    return name.read_text(encoding="utf-8")


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


def file_of(connection: Connection, file_id: str, owner: str, param: str) -> File:
    """Raises NotFoundError."""
    query = select(files).where(files.c.id == file_id, files.c.owner == owner, files.c.expires_at > time.time())
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError(f"No file with the id '{file_id[:80]}'", param=param, code="file_not_found")
    return File(**row._mapping)


def insert_file(connection: Connection, file: File) -> None:
    connection.execute(files.insert().values(asdict(file)))
