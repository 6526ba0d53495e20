"""The gateway as a process: one socket, one event loop, an orderly end.

SIGTERM or SIGINT: readiness drops, new requests and those that still wait in line get 503 at once, running answers
finish within `serving.gateway.limits.drain_timeout`. A second signal ends them with an error event.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from conch.gateway.app import create_app
from conch.gateway.keys.authority import check_exposed
from conch.gateway.settings import GatewaySettings
from conch.gateway.transport import tls
from conch.gateway.transport.connection import Connection
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.errors import SetupError

_OTHER_FILES = 256
_SEND_BUFFER_BYTES = 128 << 10
_FLUSH_SECONDS = 2
"""For the last bytes of answers, once all have ended."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises SetupError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Of its connections, too: what a slow client has not read waits here, where it is seen, not in the kernel.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        sock.bind((host, port))
        # Listening from here on: a client that is told the address may connect before the loop runs.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        fix = "Set `serving.gateway.port` in the plan; 0 takes a free port."
        raise SetupError(f"cannot listen: {error.strerror}", where=f"{host}:{port}", fix=fix) from None
    return sock


def run(
    settings: GatewaySettings,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal ends it. `on_ready` is told the URL once requests are taken."""
    import uvloop

    uvloop.install()
    _make_room_for(settings.plan.limits.connections)
    asyncio.run(serve(settings, sock or listen(settings.plan.host, settings.plan.port), on_ready))


def _make_room_for(connections: int) -> None:
    """As many open files as that takes, where the system allows it."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES if most == resource.RLIM_INFINITY else min(connections + _OTHER_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def serve(settings: GatewaySettings, sock: socket.socket, on_ready: Callable[[str], None] | None = None) -> None:
    """`run` inside an event loop of the caller's."""
    lifecycle, limits = Lifecycle(), settings.plan.limits
    context = tls.context_of(settings.plan.tls)
    app = create_app(settings, lifecycle)
    check_exposed(settings.published_on or sock.getsockname()[0], app.state.authority.guarded)
    config = uvicorn.Config(
        app,
        http=Connection.within(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle_timeout,  # type: ignore[arg-type]  # it may have a fraction
        timeout_graceful_shutdown=_FLUSH_SECONDS,
        ssl_context_factory=None if context is None else lambda config, default: context,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients do wrong would fill the log
    server = _Server(config)
    # What was loaded so far lives as long as the process: the collector need not walk it during streams.
    gc.collect()
    gc.freeze()
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    ending = asyncio.ensure_future(_end_on_signal(server, lifecycle, limits.drain_timeout))
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if on_ready is not None and server.started:
            host, port = sock.getsockname()[:2]
            scheme = "http" if context is None else "https"
            on_ready(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
        await serving
    finally:
        ending.cancel()


class _Server(uvicorn.Server):
    """uvicorn would close its socket on the first signal; here it must go on answering, with 503."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _end_on_signal(server: uvicorn.Server, lifecycle: Lifecycle, drain_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            lifecycle.halt()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await asked.wait()
    await lifecycle.drain(drain_seconds)
    server.should_exit = True
