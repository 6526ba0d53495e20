"""What keys have taken, of all gateways together: one script in Redis for each step, so that no two meet in it.

A request's place is a lease that its gateway renews; those of a gateway that has died run out. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from conch.gateway.background import background
from conch.gateway.keys.grants import Key
from conch.gateway.sharing.store import Shared

LEASE_SECONDS = 30
_RENEW_SECONDS = 10.0
_FORGET_SECONDS = 180
"""A bucket that nobody has touched for so long is full."""

_TAKE = """
local told = redis.call('TIME')
local now = told[1] + told[2] / 1000000
local limits = {tonumber(ARGV[1]), tonumber(ARGV[2])}
local parallel, tokens, lease = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])
local kept = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local passed = math.max(0, now - (tonumber(kept[3] or now)))
local levels, wanted, ok = {}, {1, tokens}, 1
for i = 1, 2 do
  if limits[i] < 0 then
    levels[i] = -1
  else
    levels[i] = math.min(limits[i], tonumber(kept[i] or limits[i]) + passed * limits[i] / 60)
    if levels[i] < wanted[i] then ok = 0 end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local running = redis.call('ZCARD', KEYS[2])
if parallel >= 0 and running >= parallel then ok = 0 end
if ok == 1 then
  for i = 1, 2 do
    if limits[i] >= 0 then levels[i] = levels[i] - wanted[i] end
  end
  redis.call('ZADD', KEYS[2], now + lease, ARGV[5])
end
redis.call('HSET', KEYS[1], 'requests', levels[1], 'tokens', levels[2], 'at', now)
redis.call('EXPIRE', KEYS[1], ARGV[7])
redis.call('EXPIRE', KEYS[2], ARGV[7])
return {ok, tostring(levels[1]), tostring(levels[2]), running}
"""
_SETTLE = """
redis.call('ZREM', KEYS[2], ARGV[1])
for i, field in ipairs({'requests', 'tokens'}) do
  local level, limit = tonumber(redis.call('HGET', KEYS[1], field) or -1), tonumber(ARGV[i + 3])
  if limit >= 0 and level >= 0 then
    redis.call('HSET', KEYS[1], field, math.min(limit, level + tonumber(ARGV[i + 1])))
  end
end
return 1
"""

_KEEP = """
local told = redis.call('TIME')
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', told[1] + told[2] / 1000000 + ARGV[1], ARGV[i])
end
return 1
"""


@dataclass(frozen=True)
class Taken:
    """What Redis says: whether the request may go in, what is left (-1: no limit), and what ran before it."""

    ok: bool
    requests: float
    tokens: float
    running: int


class SharedLimits:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._leases: dict[str, str] = {}
        """Request -> the set that it is in."""

    async def take(self, key: Key, request: str, tokens: int) -> Taken | None:
        """Ask for a place and so many tokens; None: nobody can tell now."""
        grant = key.grant
        arguments = [
            *(-1 if limit is None else limit for limit in _limits(key)),
            -1 if grant.parallel is None else grant.parallel,
            *(tokens, request, LEASE_SECONDS, _FORGET_SECONDS),
        ]
        told = await self._shared.ask("EVAL", _TAKE, 2, *_names(key), *arguments)
        if told is None:
            return None
        taken = Taken(bool(told[0]), float(told[1]), float(told[2]), int(told[3]))
        if taken.ok:
            self._leases[request] = _names(key)[1]
        return taken

    async def settle(self, key: Key, request: str, requests: int, tokens: int) -> None:
        """The request has ended; so much of what it took comes back."""
        self._leases.pop(request, None)
        limits = (-1 if limit is None else limit for limit in _limits(key))
        await self._shared.ask("EVAL", _SETTLE, 2, *_names(key), request, requests, tokens, *limits)

    def renewing(self) -> AbstractAsyncContextManager[None]:
        """Inside, the places of requests that run stay theirs."""
        return background(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            held: dict[str, list[str]] = {}
            for request, name in self._leases.items():
                held.setdefault(name, []).append(request)
            for name, requests in held.items():
                await self._shared.ask("EVAL", _KEEP, 1, name, LEASE_SECONDS, *requests)


def _limits(key: Key) -> tuple[int | None, int | None]:
    return key.grant.requests_per_minute, key.grant.tokens_per_minute


def _names(key: Key) -> list[str]:
    """One slot of a cluster holds both."""
    return [f"conch:{{{key.id}}}:buckets", f"conch:{{{key.id}}}:running"]
