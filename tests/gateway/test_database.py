"""The gateway's database, in SQLite and in PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, String, Table, func, insert, select, text

from conch.gateway.database import Database, insert_new, metadata
from conch_build.errors import InputError, UnavailableError

NOTES = Table("test_notes", metadata, Column("id", Integer, primary_key=True), Column("text", String(20)))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


def write(connection: Connection, note: str = "a") -> None:
    connection.execute(insert(NOTES).values(text=note))


def count(connection: Connection) -> int:
    return connection.scalars(select(func.count()).select_from(NOTES)).one()


async def test_what_was_run_is_there_for_whoever_reads(database: Database) -> None:
    await asyncio.gather(*(database.run(write) for _ in range(20)))
    assert await database.read(count) == await database.run(count) == 20


async def test_work_that_fails_leaves_nothing_and_raises_its_own_error(database: Database) -> None:
    def half(connection: Connection) -> None:
        write(connection)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await database.run(half)
    assert await database.read(count) == 0


async def test_a_second_insert_of_the_same_row_changes_nothing(database: Database) -> None:
    for note in ("first", "second"):
        rows = [{"id": 7, "text": note}]
        await database.run(lambda connection, rows=rows: connection.execute(insert_new(connection, NOTES), rows))
    assert await database.read(lambda connection: connection.scalars(select(NOTES.c.text)).all()) == ["first"]


async def test_what_an_earlier_table_lacks_is_added_and_empty_in_its_rows(
    database: Database, database_url: str
) -> None:
    await database.run(write)
    await database.run(lambda connection: connection.execute(text("ALTER TABLE test_notes DROP COLUMN text")))
    again = Database(database_url)
    await again.run(lambda connection: write(connection, "new"))
    texts = await again.read(lambda connection: connection.scalars(select(NOTES.c.text).order_by(NOTES.c.id)).all())
    assert texts == [None, "new"]
    await again.close()


async def test_several_databases_may_be_opened_at_once(database: Database, database_url: str) -> None:
    others = await asyncio.gather(*(asyncio.to_thread(Database, database_url) for _ in range(4)))
    await asyncio.gather(*(other.run(write) for other in others for _ in range(5)))
    assert await database.read(count) == 20
    for other in others:
        await other.close()


async def test_a_locked_file_is_an_error_of_the_house_and_can_still_be_read(tmp_path: Path) -> None:
    database = Database.at(None, tmp_path)
    await database.run(write)
    other = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    blocked = asyncio.ensure_future(database.run(write))
    assert await database.read(count) == 1
    assert not blocked.done()
    with pytest.raises(UnavailableError, match="locked"):
        await blocked
    assert time.monotonic() - begun < 5
    other.execute("ROLLBACK")
    await database.run(write)
    assert await database.read(count) == 2
    await database.close()


async def test_a_postgresql_that_is_away_is_an_error_of_the_house_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        Database("postgresql://conch:secret@127.0.0.1:9/x")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["", "x", "mysql://a/b", "sqlite://", "sqlite:///:memory:", "postgresql"])
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(InputError, match=r"serving\.gateway\.database\.url"):
        Database(url)


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_text("no database\n" * 200, encoding="utf-8")
    with pytest.raises(UnavailableError, match="not a database"):
        Database.at(None, tmp_path)


async def test_the_file_is_its_owners_alone_and_writers_lock_nobody_out(tmp_path: Path) -> None:
    database = Database.at(None, tmp_path / "home")
    for path in (tmp_path / "home").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    mode = await database.read(lambda connection: connection.scalar(text("PRAGMA journal_mode")))
    assert mode == "wal"
    await database.close()
