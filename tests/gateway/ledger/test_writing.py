"""The ledger: every row once, whatever the database does."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, func, select

from conch.gateway.database import Database
from conch.gateway.exchange import Chosen
from conch.gateway.ledger import writing as module
from conch.gateway.ledger.writing import PATIENCE_SECONDS, Ledger, ledger
from conch_build.cost import Price
from conch_build.errors import CancelledError, ConchError, ServiceError
from tests.gateway.postgres import programs, running_postgres


@dataclass(eq=False)
class Asked:
    """As much of an exchange as the ledger looks at, with times of our own."""

    name: str = "m"
    began_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float | None = 1.0
    ended_at: float = 3.0
    choices: int = 1
    prompt_tokens: int = 10
    reasoning_tokens: int = 0
    chosen: Chosen | None = None
    error: ConchError | None = None
    usd: float | None = None
    id: str = "r"
    answer_id: str = "chatcmpl-1"
    owner: str = "k"
    endpoint: str = "chat.completions"
    streaming: bool = True
    answers: list[Any] = field(default_factory=lambda: [ANSWER])

    def __post_init__(self) -> None:
        self.served = SimpleNamespace(name="m")
        self.body = SimpleNamespace(model=self.name)


ANSWER = SimpleNamespace(
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=7,
    draft_tokens=5,
    accepted_tokens=3,
    finish_reason="stop",
    server="127.0.0.1:8001",
    prefill_share=0.25,
)


@dataclass
class Books:
    ledger: Ledger
    database: Database
    registry: CollectorRegistry

    async def charge(self, asked: Asked | None = None) -> Asked:
        asked = asked or Asked()
        self.ledger.started(asked)  # type: ignore[arg-type]
        if asked.first_token_at is not None:
            self.ledger.first_token(asked)  # type: ignore[arg-type]
        await self.ledger.ended(asked)  # type: ignore[arg-type]
        return asked

    async def rows(self) -> list[Any]:
        return list(await self.database.read(lambda connection: connection.execute(select(ledger)).mappings().all()))

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(f"conch:ledger_{name}") or 0.0


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    async with open_books(tmp_path) as books:
        yield books


@asynccontextmanager
async def open_books(folder: Path, url: str | None = None) -> AsyncIterator[Books]:
    database = Database.at(url, folder)
    registry = CollectorRegistry()
    model: Any = SimpleNamespace(name="m", servers=("127.0.0.1:8001",))
    ledger = Ledger(database, [model], Price(3.6), registry)
    async with ledger.writing():
        yield Books(ledger, database, registry)
    await database.close()


def count(folder: Path) -> int:
    connection = sqlite3.connect(folder / "gateway.db")
    try:
        return int(connection.execute("SELECT count(*) FROM ledger").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.conforms("LEDGER-1")
async def test_a_row_is_there_before_the_last_byte_and_says_all(books: Books, tmp_path: Path) -> None:
    asked = await books.charge(Asked(name="french", chosen=Chosen("trial", "b", "french"), reasoning_tokens=2))
    assert count(tmp_path) == 1
    (row,) = await books.rows()
    assert abs(row["at_ms"] / 1000 - time.time()) < 5
    assert asked.usd == pytest.approx(3.6 * 3 / 3600)
    told = {name: row[name] for name in row if name not in ("id", "at_ms")}
    assert told == {
        "request": "r",
        "answer": "chatcmpl-1",
        "key": "k",
        "endpoint": "chat.completions",
        "model": "m",
        "adapter": "french",
        "server": "127.0.0.1:8001",
        "experiment": "trial",
        "variant": "b",
        "status": 200,
        "finish": "stop",
        "streamed": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "reasoning_tokens": 2,
        "draft_tokens": 5,
        "accepted_tokens": 3,
        "ttft_seconds": 1.0,
        "e2e_seconds": 3.0,
        "prefill_seconds": 1.0,
        "decode_seconds": 2.0,
        "usd": asked.usd,
    }


async def test_failures_and_leaving_are_told_with_what_they_took(books: Books) -> None:
    await books.charge(Asked(error=CancelledError("gone")))
    await books.charge(Asked(error=ServiceError("broken"), first_token_at=None, answers=[]))
    left, broken = await books.rows()
    assert (left["status"], left["finish"], left["completion_tokens"]) == (499, "cancelled", 7)
    assert (broken["status"], broken["finish"], broken["ttft_seconds"]) == (502, "error", None)
    assert (broken["prefill_seconds"], broken["decode_seconds"]) == (pytest.approx(0.0), 0.0)


async def test_an_answer_in_one_piece_is_divided_as_its_engine_tells(books: Books) -> None:
    await books.charge(Asked(streaming=False, first_token_at=4.0, ended_at=4.0))
    (row,) = await books.rows()
    assert (row["prefill_seconds"], row["decode_seconds"], row["ttft_seconds"]) == (1.0, 3.0, None)


async def test_what_never_reached_an_engine_is_no_row(books: Books) -> None:
    await books.ledger.ended(Asked(error=ServiceError("x")))  # type: ignore[arg-type]
    assert await books.rows() == []


async def test_a_thousand_at_once_are_a_thousand_rows(books: Books, tmp_path: Path) -> None:
    await asyncio.gather(*(books.charge() for _ in range(1000)))
    assert count(tmp_path) == 1000
    assert books.metric("waiting_rows") == 0


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another process's writer. Ends its transaction at the latest with the test."""
    connection = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.conforms("LEDGER-2")
async def test_a_locked_database_stops_nobody_and_is_caught_up_with(
    books: Books, lock: sqlite3.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    await books.charge()
    assert time.monotonic() - begun < PATIENCE_SECONDS + 0.3
    begun = time.monotonic()
    for _ in range(50):  # once it is known to be behind nobody waits at all
        await books.charge()
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert books.metric("waiting_rows") == 51
    assert count(tmp_path) == 0
    lock.execute("ROLLBACK")
    deadline = time.monotonic() + 15
    while books.metric("waiting_rows") and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert count(tmp_path) == 51
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "the ledger is behind",
        "the ledger has caught up",
    ]
    await books.charge()
    assert count(tmp_path) == 52


async def test_rows_beyond_the_bound_are_lost_and_counted(
    books: Books, lock: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    lock.execute("BEGIN IMMEDIATE")
    for _ in range(8):
        await books.charge()
    assert (books.metric("waiting_rows"), books.metric("lost_rows_total")) == (5, 3)
    lock.execute("ROLLBACK")
    await asyncio.sleep(3.5)
    assert count(tmp_path) == 5


async def test_a_commit_whose_outcome_was_lost_counts_once(books: Books, tmp_path: Path) -> None:
    run, tries = books.database.run, 0

    async def run_and_lose(work: Any) -> Any:
        nonlocal tries
        tries += 1
        result = await run(work)
        if tries == 1:
            raise module.UnavailableError("the connection was lost")
        return result

    books.database.run = run_and_lose  # type: ignore[method-assign]
    await books.charge()
    await asyncio.sleep(module.RETRY_SECONDS + 0.5)
    assert tries == 2
    assert count(tmp_path) == 1


async def test_what_is_left_at_the_end_is_written(tmp_path: Path) -> None:
    async with open_books(tmp_path) as books:
        tasks = [asyncio.ensure_future(books.charge()) for _ in range(20)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert count(tmp_path) == 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.conforms("LEDGER-2")
async def test_a_full_disk_stops_nobody_and_is_caught_up_with(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    async with open_books(small_disk) as books:
        asked = 0
        while not books.metric("waiting_rows") and asked < 5000:
            await asyncio.gather(*(books.charge() for _ in range(100)))
            asked += 100
        assert books.metric("waiting_rows")
        begun = time.monotonic()
        for _ in range(50):
            await books.charge()
            asked += 1
        assert time.monotonic() - begun < PATIENCE_SECONDS
        ballast.unlink()
        deadline = time.monotonic() + 15
        while books.metric("waiting_rows") and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        total = await books.database.read(_total)
        assert (total, books.metric("lost_rows_total")) == (asked, 0)


@pytest.mark.conforms("LEDGER-2")
@pytest.mark.skipif(programs() is None, reason="no PostgreSQL")
async def test_a_server_that_is_away_stops_nobody_and_is_caught_up_with(tmp_path: Path) -> None:
    with running_postgres() as server:
        async with open_books(tmp_path, server.url.format(name="postgres")) as books:
            await books.charge()
            server.stop()
            begun = time.monotonic()
            for _ in range(50):
                await books.charge()
            assert time.monotonic() - begun < 2 * PATIENCE_SECONDS
            assert books.metric("waiting_rows") == 50
            server.start()
            deadline = time.monotonic() + 15
            while books.metric("waiting_rows") and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
            assert await books.database.read(_total) == 51


def _total(connection: Connection) -> int:
    return connection.scalars(select(func.count()).select_from(ledger)).one()
