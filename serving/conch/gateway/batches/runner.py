"""All batches of a gateway's home, run by one process at a time. Knows nothing of lines.

Whichever process holds the lock of the folder runs them; the others only take them in, and one of them goes on when the
first has ended, however it ended. What is asked of a batch elsewhere is seen in the database within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time

from conch.gateway.batches.run import BatchRun, Shop
from conch_build.errors import ConchError

_TURN_SECONDS = 1.0
_SWEEP_SECONDS = 60.0

log = logging.getLogger("conch.gateway")


class BatchRunner:
    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._draining = False
        self._swept_at = 0.0

    def wake(self) -> None:
        """Look at once for what is new."""
        self._wake.set()

    def drain(self) -> None:
        """Take no more lines; those that run are finished."""
        self._draining = True
        for run, _ in self._runs.values():
            run.draining = True
        self.wake()

    async def run(self) -> None:
        """Until `drain`. Then all that ran has been written down."""
        lock = os.open(self._shop.files.folder.parent / "batches.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not (self._draining or _locked(lock)):
                await self._pause()
            while not self._draining:
                try:
                    await self._turn()
                except ConchError as error:  # the database is away: it is asked again
                    log.warning("batches: %s", error.message)
                except Exception:  # whatever it is, the next turn must come
                    log.exception("batches")
                await self._pause()
            if self._runs:
                await asyncio.wait([task for _, task in self._runs.values()])
        finally:
            os.close(lock)

    async def _turn(self) -> None:
        unfinished = await self._shop.store.unfinished(self._shop.files.place)
        for batch in unfinished:
            if self._draining:
                return
            if batch.id not in self._runs:
                run = BatchRun(batch, self._shop)
                self._runs[batch.id] = run, asyncio.ensure_future(self._one(run))
            elif batch.status == "cancelling":
                self._runs[batch.id][0].cancelled = True
        for run, _ in list(self._runs.values()):
            await run.tell()
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            first, self._swept_at = not self._swept_at, time.monotonic()
            await self._shop.files.sweep()
            if first:
                await self._shop.files.sweep_orphans()

    async def _one(self, run: BatchRun) -> None:
        """One that fails for a reason of our own is begun again at the next turn, from its journal."""
        try:
            await run.run()
        except (ConchError, OSError) as error:
            log.warning("batch %s is begun again: %s", run.batch.id, error)
        except Exception:
            log.exception("batch %s is begun again", run.batch.id)
        finally:
            del self._runs[run.batch.id]

    async def _pause(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _TURN_SECONDS)
        self._wake.clear()


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
