"""The connection to Redis: it answers in 50 ms or is done without. Knows nothing of what is kept there.

What is asked at once goes there at once, over one connection: a burst of requests opens no burst of connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from conch.gateway.background import background
from conch_build.extras import require

ANSWER_SECONDS = 0.05
"""The most that a request waits for it."""
_AWAY_AFTER = 3
"""Answers in a row that did not come in time."""
_AGAIN_SECONDS = 1.0

log = logging.getLogger("conch.gateway")


class Shared:
    """`here`: it is asked. A broken connection, or silence, takes it away until a ping succeeds, tried every second."""

    def __init__(self, url: str, registry: CollectorRegistry) -> None:
        """Raises SetupError without the extra `redis`."""
        require("serving.gateway.redis", "redis", "redis")
        from redis.asyncio import Redis

        self._redis: Any = Redis.from_url(
            url, password=os.environ.get("REDIS_PASSWORD"), socket_connect_timeout=1, socket_timeout=1
        )
        self.here = False
        self._silences = 0
        self._asked: list[tuple[Sequence[Any], asyncio.Future[Any]]] = []
        self._some = asyncio.Event()
        gauge = Gauge("conch:redis_up", "Whether the Redis of this gateway answers", registry=registry)
        gauge.set_function(lambda: self.here)

    async def ask(self, *command: Any) -> Any:
        """What it answers to a command; None when it does not in time, or is away."""
        if not self.here:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((command, answer))
        self._some.set()
        try:
            told = await asyncio.wait_for(answer, ANSWER_SECONDS)
        except asyncio.TimeoutError:
            self._silences += 1
            if self._silences >= _AWAY_AFTER:
                self._lost("it does not answer in time")
            return None
        self._silences = 0
        return told

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Inside, questions are sent, and it is found again when it comes back."""
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(background(self._send()))
                await stack.enter_async_context(background(self._follow()))
                yield
        finally:
            self.here = False
            await self._redis.aclose()

    async def _send(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            asked, self._asked = [one for one in self._asked if not one[1].done()], []
            pipeline = self._redis.pipeline(transaction=False)
            for command, _ in asked:
                pipeline.execute_command(*command)
            try:
                answers = await pipeline.execute(raise_on_error=False)
            except Exception as error:  # whatever it is, what waits must be told
                answers = [error] * len(asked)
                self._lost(str(error))
            for (_, waiting), told in zip(asked, answers, strict=True):
                if isinstance(told, Exception):
                    log.warning("Redis refused: %s", told)
                if not waiting.done():
                    waiting.set_result(None if isinstance(told, Exception) else told)

    async def _follow(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._redis.ping(), 1)
                if not self.here:
                    log.info("Redis answers: what is shared is shared again")
                    self.here, self._silences = True, 0
            except Exception as error:  # whatever it is, the next turn must come
                self._lost(str(error) or type(error).__name__)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _lost(self, why: str) -> None:
        if self.here:
            log.warning("Redis is away, so this gateway counts for itself: %s", why)
        self.here = False
