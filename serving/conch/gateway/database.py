"""The gateway's database: SQLite in a file of its own, or PostgreSQL by URL. Knows nothing of what its tables hold.

Whoever keeps something defines tables on `metadata`. All that is written goes through one thread, so that a slow disk
holds up no stream; what is only read has another one, which no writer of any process can lock out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Insert, MetaData, Table, create_engine, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError

from conch_build.errors import InputError, SetupError, UnavailableError
from conch_build.extras import pip_install

T = TypeVar("T")

metadata = MetaData()
"""All tables of the gateway. A `Database` makes tables and columns that are missing when it is opened."""

_BUSY_MS = 2000
"""How long a writer waits for another process's transaction."""
_PREPARING = 0x636F6E6368
"""PostgreSQL's lock against two gateways that make the same tables at once."""
_FIX = "Correct `serving.gateway.database.url`: postgresql://USER@HOST/NAME, or leave it out for a SQLite file."


class Database:
    """Open from the start to `close`."""

    def __init__(self, url: str) -> None:
        """`url`: `sqlite:///PATH` or `postgresql://USER@HOST/NAME`. Raises InputError, SetupError, UnavailableError."""
        self._engine = _engine(url)
        self._writer = ThreadPoolExecutor(1, "database")
        self._reader = ThreadPoolExecutor(1, "database-read")
        self.run_now(_prepare)

    @classmethod
    def at(cls, url: str | None, home: Path) -> Database:
        """The plan's database; without one the file in the gateway's `home`, which only its owner may read."""
        if url is not None:
            return cls(url)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = home / "gateway.db"
        path.touch(0o600)
        return cls(f"sqlite:///{path}")

    async def run(self, work: Callable[[Connection], T]) -> T:
        """`work` in a transaction of its own, off the event loop, in turn with all others. Raises UnavailableError
        when the database is locked, full or away: nothing of it was kept, as far as can be told."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self.run_now, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """As `run`, for work that only reads: it waits for no writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, work)

    def run_now(self, work: Callable[[Connection], T]) -> T:
        """As `run`, in the caller's thread: for commands."""
        with self._failing(), self._engine.begin() as connection:
            return work(connection)

    async def close(self) -> None:
        """Once what was begun is done."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        self._writer.shutdown()
        self._reader.shutdown()
        self._engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._failing(), self._engine.connect().execution_options(conch_reads=True) as connection:
            return work(connection)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What is wrong with the database, rather than with what it was asked, is an error of the house's own."""
        try:
            yield
        except DBAPIError as error:
            cause = str(error.orig).strip()
            away = isinstance(error, OperationalError | InterfaceError | InternalError)
            if not away and type(error) is not DatabaseError:  # the last: a file that is none of SQLite's, or damaged
                raise
            where = self._engine.url.render_as_string(hide_password=True)
            raise UnavailableError(f"the gateway's database does not answer: {cause}", where=where) from None


def insert_new(connection: Connection, table: Table) -> Insert:
    """INSERT that leaves out rows whose primary key is there already: a second try changes nothing."""
    return _insert_new(connection.dialect.name, table)


@cache
def _insert_new(dialect: str, table: Table) -> Insert:
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InputError("the gateway's database has no URL that can be read", fix=_FIX) from None
    kind = parsed.get_backend_name() if parsed.drivername else ""
    if kind == "postgresql":
        return _postgresql(parsed.set(drivername="postgresql+psycopg"))
    if kind == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return _sqlite(parsed.set(drivername="sqlite+pysqlite"))
    raise InputError(f"the gateway cannot keep a database of the kind {parsed.drivername!r}", fix=_FIX)


def _postgresql(url: Any) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    except ImportError:
        fix = f"Install it: {pip_install('postgres')}."
        raise SetupError("a PostgreSQL database needs the package psycopg", fix=fix) from None


def _sqlite(url: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_MS / 1000})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where they are told to, below
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        reads = connection.get_execution_options().get("conch_reads")
        # A writer takes its lock at once: one that has read first could not get it any more.
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _prepare(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_PREPARING})"))
    metadata.create_all(connection)
    _add_columns(connection)


def _add_columns(connection: Connection) -> None:
    """Those that tables of an earlier Conch lack: empty in its rows."""
    inspector = inspect(connection)
    for table in metadata.sorted_tables:
        there = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
