"""The ledger: one row for each exchange that an engine was asked for, with its tokens, its times and what it cost.

Rows are committed before the client has the last byte, in groups, off the event loop. While the database is locked,
full or away they are kept here, so many at most, and nobody waits for them. Knows nothing of reports.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy import BigInteger, Column, Connection, Float, Integer, String, Table
from sqlalchemy.exc import SQLAlchemyError

from conch.gateway.background import background
from conch.gateway.database import Database, insert_new, metadata
from conch.gateway.exchange import Exchange, Observer
from conch.gateway.ledger.busy import Share, ShareClock
from conch.gateway.settings import ModelSettings
from conch_build.cost import Price
from conch_build.errors import CancelledError, UnavailableError

PATIENCE_SECONDS = 0.5
"""How long an answer's last byte waits for its row."""
RETRY_SECONDS = 1.0
MOST_ROWS = 20_000
"""That are kept while the database fails; what comes then is lost, and counted."""
_GROUP = 500

log = logging.getLogger("conch.gateway")

ledger = Table(
    "ledger",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("at_ms", BigInteger, nullable=False, index=True),
    Column("request", String(128), nullable=False),
    Column("answer", String(64), nullable=False),
    Column("key", String(16), nullable=False),
    Column("endpoint", String(32), nullable=False),
    Column("model", String(255), nullable=False),
    Column("adapter", String(255), nullable=False),
    Column("server", String(255), nullable=False),
    Column("experiment", String(255), nullable=False),
    Column("variant", String(255), nullable=False),
    Column("status", Integer, nullable=False),
    Column("finish", String(32), nullable=False),
    Column("streamed", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("draft_tokens", Integer, nullable=False),
    Column("accepted_tokens", Integer, nullable=False),
    Column("ttft_seconds", Float),
    Column("e2e_seconds", Float, nullable=False),
    Column("prefill_seconds", Float, nullable=False),
    Column("decode_seconds", Float, nullable=False),
    Column("usd", Float),
)
"""`at_ms`: when it ended, since 1970; `ttft_seconds`: of streams; `usd`: what its share of the busy time cost, where
there was a price."""


class Ledger(Observer):
    def __init__(
        self, database: Database, models: Iterable[ModelSettings], price: Price | None, registry: CollectorRegistry
    ) -> None:
        """`price`: of each server's time."""
        self._database = database
        self._price = price
        self._clocks = {model.name: ShareClock(len(model.servers)) for model in models}
        self._shares: dict[Exchange, Share] = {}
        self._rows: deque[tuple[dict[str, Any], asyncio.Future[None]]] = deque()
        self._some = asyncio.Event()
        self._behind = False
        waiting = Gauge("conch:ledger_waiting_rows", "Rows that are not yet in the database", registry=registry)
        waiting.set_function(lambda: len(self._rows))
        self._lost = Counter("conch:ledger_lost_rows", "Rows that could not be kept", registry=registry)

    def resize(self, model: str, servers: int) -> None:
        """The model has so many servers from now on."""
        self._clocks[model].resize(servers, time.perf_counter())

    def started(self, exchange: Exchange) -> None:
        assert exchange.started_at is not None
        clock = self._clocks[exchange.served.name]
        self._shares[exchange] = clock.start(exchange.started_at, max(1, exchange.choices))

    def first_token(self, exchange: Exchange) -> None:
        share = self._shares.get(exchange)
        if share is not None and exchange.first_token_at is not None:
            share.first_token(exchange.first_token_at)

    async def ended(self, exchange: Exchange) -> None:
        share = self._shares.pop(exchange, None)
        if share is None:
            return
        assert exchange.ended_at is not None
        prefill, decode = share.end(exchange.ended_at)
        told = exchange.answers[0].prefill_share if exchange.answers else None
        if told is not None and not exchange.streaming:  # it came in one piece: only the engine saw its first token
            prefill, decode = told * (prefill + decode), (1 - told) * (prefill + decode)
        exchange.usd = self._price.usd(prefill + decode) if self._price else None
        kept = self._keep({**_row(exchange), "prefill_seconds": prefill, "decode_seconds": decode})
        if kept is None or self._behind:
            return
        done, _ = await asyncio.wait((kept,), timeout=PATIENCE_SECONDS)
        if not done:
            self._fall_behind("the database takes too long")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Rows go to the database inside; what is left at the end has one more try."""
        try:
            async with background(self._run()):
                yield
        finally:
            await self._finish()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._rows:
                try:
                    await self._write()
                except UnavailableError as error:
                    self._fall_behind(error.message)
                    await asyncio.sleep(RETRY_SECONDS)
                except SQLAlchemyError:  # rows that the database will never take
                    log.exception("rows of the ledger are lost")
                    self._lose(_GROUP)
            if self._behind:
                self._behind = False
                log.warning("the ledger has caught up")

    async def _finish(self) -> None:
        try:
            while self._rows:
                await self._write()
        except UnavailableError as error:
            log.error("%d rows of the ledger are lost: %s", len(self._rows), error.message)
            self._lose(len(self._rows))

    def _keep(self, row: dict[str, Any]) -> asyncio.Future[None] | None:
        if len(self._rows) >= MOST_ROWS:
            self._lost.inc()
            return None
        kept = asyncio.get_running_loop().create_future()
        self._rows.append((row, kept))
        self._some.set()
        return kept

    async def _write(self) -> None:
        """The oldest rows, in one transaction. Raises UnavailableError; they stay then."""
        group = [self._rows[index] for index in range(min(_GROUP, len(self._rows)))]
        rows = [row for row, _ in group]

        def write(connection: Connection) -> None:
            # A commit whose outcome is not known is tried again, and must not count twice.
            connection.execute(insert_new(connection, ledger), rows)

        await self._database.run(write)
        for _, kept in group:
            self._rows.popleft()
            if not kept.done():
                kept.set_result(None)

    def _lose(self, count: int) -> None:
        for _ in range(min(count, len(self._rows))):
            self._rows.popleft()
            self._lost.inc()

    def _fall_behind(self, reason: str) -> None:
        if not self._behind:
            self._behind = True
            log.warning("the ledger is behind, and answers no longer wait for it: %s", reason)


def _row(exchange: Exchange) -> dict[str, Any]:
    """All but the busy time."""
    answers, error, now = exchange.answers, exchange.error, time.time_ns()
    first = exchange.first_token_at
    name = exchange.body.model or exchange.served.name
    assert exchange.ended_at is not None
    return {
        "id": f"{now:016x}{secrets.token_hex(8)}",  # in the order of time, for the index
        "at_ms": now // 1_000_000,
        "request": exchange.id,
        "answer": exchange.answer_id,
        "key": exchange.owner,
        "endpoint": exchange.endpoint,
        "model": exchange.served.name,
        "adapter": "" if name == exchange.served.name else name,
        "server": answers[0].server if answers else "",
        "experiment": exchange.chosen.experiment if exchange.chosen else "",
        "variant": exchange.chosen.variant if exchange.chosen else "",
        "status": error.http_status if error else 200,
        "finish": _finish(exchange),
        "streamed": int(exchange.streaming),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers) or exchange.prompt_tokens,
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
        "reasoning_tokens": exchange.reasoning_tokens,
        "draft_tokens": sum(answer.draft_tokens for answer in answers),
        "accepted_tokens": sum(answer.accepted_tokens for answer in answers),
        "ttft_seconds": first - exchange.began_at if first is not None and exchange.streaming else None,
        "e2e_seconds": exchange.ended_at - exchange.began_at,
        "usd": exchange.usd,
    }


def _finish(exchange: Exchange) -> str:
    """How its first answer ended, or why none did."""
    if exchange.error is not None:
        return "cancelled" if isinstance(exchange.error, CancelledError) else "error"
    return (exchange.answers and exchange.answers[0].finish_reason) or ""
