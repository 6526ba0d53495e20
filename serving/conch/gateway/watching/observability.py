"""What tells of requests, put together: metrics, access log, traces, dashboard."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from fastapi import APIRouter
from fastapi.params import Depends
from prometheus_client import Counter

from conch.gateway.context import Context
from conch.gateway.exchange import Observer
from conch.gateway.watching.access_log import AccessLog
from conch.gateway.watching.dashboard import routes
from conch.gateway.watching.dashboard.recorder import EVERY_SECONDS, Arrivals, Recorder
from conch.gateway.watching.lines import LineWriter, check_log
from conch.gateway.watching.metrics import Metrics, exposition
from conch.gateway.watching.metrics.machine import Machine
from conch.gateway.watching.metrics.requests import Requests
from conch.gateway.watching.record import Record
from conch.gateway.watching.tracing import Traces, check_tracing, is_wanted
from conch_build.plan_gateway import Gateway

_LAST_SPANS_SECONDS = 5.0


def check_told(plan: Gateway) -> None:
    """Raises SetupError for what `Observability` could not do, before anything is started."""
    if (path := _log_path(plan)) is not None:
        check_log(path)
    check_tracing(plan.tracing)


class Observability:
    """`first` are told of exchanges before those that let them in and charge them, `observers` after; `tellers` of
    what is over."""

    def __init__(self, plan: Gateway, metrics: Metrics) -> None:
        """Raises SetupError."""
        check_told(plan)
        self._machine = Machine(metrics.registry)
        arrivals = Arrivals()
        self._recorder = Recorder(arrivals)
        self.first: list[Observer] = [arrivals]
        self.observers: list[Observer] = [Requests(), self._recorder]
        self.tellers: list[Callable[[Record], None]] = [_counter(metrics.responses)]
        self._lines: LineWriter | None = None
        if plan.access_log != "off":
            self._lines = LineWriter(_log_path(plan), metrics.dropped_lines.inc)
            self.tellers.append(AccessLog(self._lines.write))
        self._traces = Traces(plan.tracing) if is_wanted(plan.tracing) else None
        if self._traces is not None:
            self.tellers.append(self._traces)

    def router(self, context: Context, http: httpx.AsyncClient, dependencies: Sequence[Depends] = ()) -> APIRouter:
        """`dependencies`: who may look."""
        router = APIRouter()
        router.include_router(exposition.router(context, http, self._recorder.waiting, dependencies))
        router.include_router(routes.router(context, http, self._recorder, self._machine.gpus, dependencies))
        return router

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While requests are served. SIGHUP opens the access log anew."""
        lines = self._lines
        if lines is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lines.reopen)
        sampling = asyncio.ensure_future(_every(EVERY_SECONDS, self._recorder.sample))
        try:
            yield
        finally:
            sampling.cancel()
            if lines is not None:
                await asyncio.to_thread(lines.close)
            if self._traces is not None:
                # A daemon: a collector that does not answer must not hold up the process's end.
                closing = threading.Thread(target=self._traces.close, daemon=True)
                closing.start()
                await asyncio.to_thread(closing.join, _LAST_SPANS_SECONDS)


def _log_path(plan: Gateway) -> Path | None:
    """None: there is no file."""
    return None if plan.access_log in ("off", "stdout") else Path(plan.access_log)


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        work()


def _counter(responses: Counter) -> Callable[[Record], None]:
    def count(record: Record) -> None:
        responses.labels(record.route or "none", str(record.status)).inc()

    return count
