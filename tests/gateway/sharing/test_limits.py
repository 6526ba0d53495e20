"""A key's limits over several gateways: each of these has its own connection to one real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from conch.gateway.errors import QueueFull, RateLimited
from conch.gateway.keys.limits import KeyLimits
from conch.gateway.sharing import limits as module
from conch.gateway.sharing.limits import SharedLimits
from conch.gateway.sharing.store import ANSWER_SECONDS, Shared
from conch_build.errors import CancelledError
from tests.gateway.keys.test_limits import Asked as _Asked
from tests.gateway.keys.test_limits import key
from tests.gateway.redis_server import RedisServer


class Gateway:
    def __init__(self, url: str) -> None:
        registry = CollectorRegistry()
        self.shared = Shared(url, registry)
        self.books = SharedLimits(self.shared)
        self.limits = KeyLimits(registry, self.books)


class Asked(_Asked):
    """With the name that a lease needs."""

    count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Asked.count += 1
        self.id = f"request-{Asked.count}"


@asynccontextmanager
async def gateways(url: str, count: int = 2) -> AsyncIterator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        found = [Gateway(url) for _ in range(count)]
        for gateway in found:
            await stack.enter_async_context(gateway.shared.following())
            await stack.enter_async_context(gateway.books.renewing())
        await until(lambda: all(gateway.shared.here for gateway in found))
        yield found


async def until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.02)


async def let_in(gateway: Gateway, asked: Asked) -> bool:
    try:
        await gateway.limits.admit(asked)  # type: ignore[arg-type]
    except RateLimited as error:
        asked.error = error
        await gateway.limits.ended(asked)  # type: ignore[arg-type]
        return False
    return True


async def test_all_gateways_together_let_in_what_one_would(redis_server: RedisServer) -> None:
    ada = key(requests_per_minute=40)
    async with gateways(redis_server.url, 3) as three:
        answers = await asyncio.gather(*(let_in(three[number % 3], Asked(ada)) for number in range(120)))
        assert sum(answers) in (40, 41)  # one may have come back meanwhile


async def test_a_place_is_one_everywhere_and_comes_back_however_a_request_ends(redis_server: RedisServer) -> None:
    ada = key(parallel=2)
    async with gateways(redis_server.url) as (one, two):
        for error in (None, CancelledError("gone"), QueueFull()):
            held = [Asked(ada), Asked(ada)]
            assert await let_in(one, held[0]) and await let_in(two, held[1])
            assert not await let_in(one, Asked(ada))
            assert not await let_in(two, Asked(ada))
            for gateway, asked in zip((one, two), held, strict=True):
                asked.error = error
                await gateway.limits.ended(asked)  # type: ignore[arg-type]


async def test_tokens_that_were_not_used_are_there_for_the_other_gateway(redis_server: RedisServer) -> None:
    ada = key(tokens_per_minute=100)
    async with gateways(redis_server.url) as (one, two):
        first = Asked(ada, 10, 85)
        assert await let_in(one, first)
        assert not await let_in(two, Asked(ada, 10, 20))
        first.answered(5)
        await one.limits.ended(first)  # type: ignore[arg-type]
        second = Asked(ada, 10, 70)
        assert await let_in(two, second)
        assert int(second.headers["x-ratelimit-remaining-tokens"]) in range(5, 8)


async def test_the_places_of_a_gateway_that_died_run_out_and_those_of_a_living_one_do_not(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 1)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.2)
    ada = key(parallel=2)
    async with gateways(redis_server.url, 1) as (living,):
        async with gateways(redis_server.url, 1) as (dying,):
            assert await let_in(living, Asked(ada)) and await let_in(dying, Asked(ada))
            assert not await let_in(living, Asked(ada))
        await asyncio.sleep(1.3)
        assert await let_in(living, Asked(ada))
        assert not await let_in(living, Asked(ada))


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_redis_each_counts_for_itself_at_once_and_together_when_it_is_back(
    redis_server: RedisServer, how: str
) -> None:
    ada = key(parallel=1)
    async with gateways(redis_server.url) as (one, two):
        assert await let_in(one, Asked(ada))
        redis_server.stop() if how == "killed" else redis_server.freeze()
        began = time.monotonic()
        assert await let_in(two, Asked(ada))  # nobody can tell it of the other one
        assert time.monotonic() - began < ANSWER_SECONDS + 1
        assert not await let_in(two, Asked(ada))
        redis_server.start() if how == "killed" else redis_server.thaw()
        await until(lambda: one.shared.here and two.shared.here)
        bob = key(parallel=1)
        if how == "frozen":
            assert not await let_in(two, Asked(bob))  # the first one's place is still known
