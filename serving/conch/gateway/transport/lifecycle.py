"""Who is still being served, and when to stop: disconnects, draining, halting. Knows nothing of models."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from conch.gateway.errors import Draining, OverDeadline
from conch_build.errors import CancelledError

T = TypeVar("T")


class Lifecycle:
    """serving -> draining (running requests finish, new ones are refused) -> halted (running ones end)."""

    def __init__(self) -> None:
        self.draining = False
        self._on_drain: list[Callable[[], None]] = []
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._halted = asyncio.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """One request is being served."""
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    def on_drain(self, tell: Callable[[], None]) -> None:
        """Call `tell` when no new work is taken any more."""
        self._on_drain.append(tell)

    async def drain(self, seconds: float) -> None:
        """Refuse new work and wait until the running requests have ended; halt them when time is up."""
        self.draining = True
        for tell in self._on_drain:
            tell()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            self.halt()
            await self._idle.wait()

    def halt(self) -> None:
        """End what runs, each with an error that says why."""
        self.draining = True
        self._halted.set()

    async def while_connected(self, receive: Receive, work: Coroutine[Any, Any, T], latest: float = math.inf) -> T:
        """Run `work` until it is done, the client leaves (CancelledError), the gateway halts (Draining) or the latest
        moment has come (OverDeadline), by `time.perf_counter`.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnected(receive))
        halted = asyncio.ensure_future(self._halted.wait())
        try:
            seconds = None if latest == math.inf else latest - time.perf_counter()
            await asyncio.wait((task, gone, halted), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise CancelledError("the client went away")
            raise Draining() if halted.done() else OverDeadline()
        finally:
            for waiter in (task, gone, halted):
                waiter.cancel()
            # The work's own clean-up (cancelling in the engine) comes before anything else happens.
            await asyncio.wait((task,))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
