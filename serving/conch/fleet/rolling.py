"""Another build takes over, one replica after the other, while the rest answers. Knows nothing of how it was built."""

from __future__ import annotations

import asyncio
from typing import Protocol

from conch.fleet.fleet import Fleet, Replica
from conch.gateway.settings import Server
from conch_build.errors import ConchError, ServiceError
from conch_build.pipeline import BuildResult
from conch_build.store import Say


class Members(Protocol):
    """The servers that a gateway asks."""

    def join(self, server: Server) -> None: ...

    async def leave(self, grpc_url: str, seconds: float) -> None: ...


def server_of(replica: Replica) -> Server:
    return Server(replica.triton.grpc_url, replica.triton.metrics_url)


async def roll(fleet: Fleet, members: Members, build: BuildResult, seconds: float, say: Say) -> None:
    """Every replica serves `build` at the end, or what it served before. `seconds`: the longest that a request takes.

    Of several replicas one at a time stops being asked, ends its requests and is started anew, so that no memory is
    needed beside what is there. One alone is joined by its successor first, which takes as much again for a while.
    Raises ServiceError when a server does not start with the new build.
    """
    before = {replica.number: replica.build for replica in fleet.replicas}
    for number in range(fleet.size):
        say(f"roll        replica {number} ({number + 1} of {fleet.size})")
        try:
            await _renew(fleet, members, number, build, seconds)
        except ConchError as error:
            say(f"roll        replica {number} does not start with it: back to what was served before")
            for other, old in before.items():
                await _renew(fleet, members, other, old, seconds)
            text = f"replica {number} did not start with the new build, and all serve the old one: {error}"
            raise ServiceError(text) from None


async def _renew(fleet: Fleet, members: Members, number: int, build: BuildResult, seconds: float) -> None:
    """The replica of this number serves `build`, which it may have done before."""
    old = {replica.number: replica for replica in fleet.replicas}.get(number)
    if old is not None and old.build is build:
        return
    alone = old is not None and fleet.size == 1
    if old is not None and not alone:
        await _retire(fleet, members, old, seconds)
    new = await asyncio.to_thread(fleet.begin, number, build, beside=alone)
    members.join(server_of(new))
    if old is not None and alone:
        await _retire(fleet, members, old, seconds)


async def _retire(fleet: Fleet, members: Members, old: Replica, seconds: float) -> None:
    await members.leave(old.triton.grpc_url, seconds)
    await asyncio.to_thread(fleet.end, old)
