"""As many requests at once as the server takes."""

from __future__ import annotations

import asyncio

from conch.batch.throttle import Throttle


async def test_the_window_grows_while_all_goes_well_and_halves_when_it_is_too_much() -> None:
    throttle = Throttle(64)
    for _ in range(100):
        throttle.went_well()
    assert throttle.window == 64
    throttle.refused(0)
    assert throttle.window == 32
    throttle.went_well()
    assert 32 < throttle.window < 32.1


async def test_refusals_that_come_together_count_once() -> None:
    now = 0.0
    throttle = Throttle(64, clock=lambda: now)
    for _ in range(20):
        throttle.refused(1)
    assert throttle.window == 4
    now = 1.5
    throttle.refused(1)
    assert throttle.window == 2


async def test_no_more_run_than_there_is_room_for_and_the_server_is_left_alone_as_long_as_it_says() -> None:
    throttle = Throttle(2)
    most = 0

    async def one() -> None:
        nonlocal most
        async with throttle.place():
            most = max(most, throttle.running)
            await asyncio.sleep(0.001)

    await asyncio.gather(*[one() for _ in range(20)])
    assert (most, throttle.running) == (2, 0)
    throttle.refused(0.2)
    began = asyncio.get_running_loop().time()
    await one()
    assert asyncio.get_running_loop().time() - began >= 0.19
