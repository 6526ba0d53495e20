"""Servers that a name stands for, as Kubernetes' headless services have one for each pod: looked up again and again.

A look-up that fails says nothing about the servers, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from conch.gateway.background import Together
from conch.gateway.served import Catalog
from conch.gateway.settings import Membership, Server
from conch_build.errors import InputError

LOOKUP_SECONDS = 2.0

log = logging.getLogger("conch.gateway")
Resolve = Callable[[str, int], Awaitable[set[str]]]


async def resolved(host: str, port: int) -> set[str]:
    """The addresses of a name. Raises OSError when nobody can tell, and when there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


def addresses(
    model: str, grpc_url: str, metrics_url: str | None, seconds: float, resolve: Resolve = resolved
) -> Membership:
    """Lets servers join and leave as the name in `grpc_url` (`host:port`) stands for them.

    `metrics_url`: of each, with that name in it. `seconds`: how long one that is gone may take to end its requests.
    Raises InputError for what is no `host:port`.
    """
    host, _, text = grpc_url.rpartition(":")
    if not host or not text.isdigit():
        raise InputError(f"{grpc_url!r} is no host:port", where="--grpc-url", fix="Give one as triton:8001.")

    def server(address: str) -> Server:
        written = f"[{address}]" if ":" in address else address
        metrics = metrics_url.replace(f"//{host}", f"//{written}", 1) if metrics_url else None
        return Server(f"{written}:{text}", metrics)

    async def follow(catalog: Catalog) -> None:
        upstream = catalog.find(model).upstream
        known: dict[str, Server] = {}
        async with Together() as leaving:
            while True:
                try:
                    now = await resolve(host, int(text))
                except OSError as error:
                    log.warning("%s cannot be looked up, so its servers stay as they are: %s", host, error)
                    now = set(known)
                for address in sorted(now - known.keys()):
                    known[address] = server(address)
                    upstream.join(known[address])
                    log.info("%s joined %s", known[address].grpc_url, model)
                for address in sorted(known.keys() - now):
                    gone = known.pop(address)
                    leaving.start(upstream.leave(gone.grpc_url, seconds))
                    log.info("%s left %s", gone.grpc_url, model)
                await asyncio.sleep(LOOKUP_SECONDS)

    return follow
