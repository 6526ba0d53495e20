"""Disconnects, draining and halting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conch.gateway.errors import Draining
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.errors import CancelledError


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


class Work:
    """Something that takes for ever and notes that it was cleaned up."""

    def __init__(self) -> None:
        self.cleaned = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned = True


async def test_work_that_ends_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await Lifecycle().while_connected(never, work()) == 7


async def test_a_disconnect_ends_the_work_before_anything_else_happens() -> None:
    async def leaves() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    work = Work()
    with pytest.raises(CancelledError):
        await Lifecycle().while_connected(leaves, work.run())
    assert work.cleaned


async def test_a_halt_ends_the_work_with_a_reason() -> None:
    lifecycle, work = Lifecycle(), Work()
    asyncio.get_running_loop().call_later(0.01, lifecycle.halt)
    with pytest.raises(Draining):
        await lifecycle.while_connected(never, work.run())
    assert work.cleaned


async def test_a_drain_waits_for_what_runs() -> None:
    lifecycle = Lifecycle()
    with lifecycle.running():
        drain = asyncio.ensure_future(lifecycle.drain(5))
        await asyncio.sleep(0.01)
        assert lifecycle.draining
        assert not drain.done()
    await asyncio.wait_for(drain, 1)


async def test_a_drain_halts_what_outlasts_its_time() -> None:
    lifecycle, work = Lifecycle(), Work()

    async def serve() -> None:
        with lifecycle.running():
            await lifecycle.while_connected(never, work.run())

    serving = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    await asyncio.wait_for(lifecycle.drain(0.02), 1)
    assert work.cleaned
    with pytest.raises(Draining):
        await serving
