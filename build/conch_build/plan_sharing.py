"""The plan's `serving.gateway.redis` and `.cache`: what several gateways have in common beside their database."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from conch_build.plan_parts import Part
from conch_build.units import ByteSize, Duration


def _a_redis(value: str) -> str:
    if not value.startswith(("redis://", "rediss://")):
        raise ValueError(f"{value!r} is no address of a Redis, as `redis://localhost:6379/0` is")
    if "@" in value and ":" in value.split("//", 1)[1].split("@", 1)[0]:
        raise ValueError("a password does not belong into a plan: put it into the variable REDIS_PASSWORD")
    return value


class Redis(Part):
    url: Annotated[str, AfterValidator(_a_redis)] | None = None
    """`redis://HOST:PORT/NUMBER` (`rediss://`: by TLS): keys' limits then hold for all gateways together. Its password:
    REDIS_PASSWORD. While it is away each gateway counts for itself."""


class Cache(Part):
    """Whole answers, for requests that repeat another one of the same key word for word."""

    ttl: Duration | None = None
    """How long an answer is kept; absent: none is. It needs `redis`."""
    answer_bytes: ByteSize = 64 << 10
    """Larger ones are not kept."""
