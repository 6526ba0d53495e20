"""Connections over real sockets: heads too large or too slow, bodies too slow, readers who do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from conch.gateway.transport.connection import Connection
from conch.gateway.transport.server import listen
from conch_build.plan_admission import Limits

Serve = Callable[..., AbstractAsyncContextManager["Peer"]]
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Peer:
    """A server, and what its app has seen."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.written = 0
        self.disconnects = 0

    async def say(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def status_after(self, data: bytes) -> int:
        """Of the answer to these bytes, after which the server hangs up; 0: it did so without a word."""
        reader, writer = await self.say(data)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        if not answer:
            return 0
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
        return int(head.split()[1])


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def serving(**limits: Any) -> AsyncIterator[Peer]:
        sock = listen("127.0.0.1", 0)
        peer = Peer(sock.getsockname()[1])

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            size = 0
            while (message := await receive()).get("more_body"):
                size += len(message["body"])
            if message["type"] == "http.disconnect":
                peer.disconnects += 1
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/flood":
                gone = asyncio.ensure_future(receive())
                while not gone.done():
                    await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                    peer.written += 1000
                    await asyncio.sleep(0)
                peer.disconnects += 1
                return
            size += len(message["body"])
            await send({"type": "http.response.body", "body": str(size).encode()})

        config = uvicorn.Config(
            app,
            http=Connection.within(Limits.model_construct(**{**dict(Limits()), **limits})),
            lifespan="off",
            log_config=None,
            timeout_keep_alive=limits.get("idle_timeout", 60),
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        task = asyncio.ensure_future(server._serve([sock]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield peer
        finally:
            server.should_exit = True
            await task

    return serving


async def test_heads_over_the_limit_are_refused_whether_they_end_or_not(serve: Serve) -> None:
    async with serve(head_bytes=2000) as peer:
        big = b"GET / HTTP/1.1\r\nx: " + b"y" * 2100
        assert await peer.status_after(big) == 431
        assert await peer.status_after(big + b"\r\n\r\n") == 431
        assert await peer.status_after(b"GET /" + b"z" * 2100 + b" HTTP/1.1\r\n\r\n") == 431
        assert await peer.status_after(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 200 + b"\r\n") == 431


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHOST: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: y\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400),
    ],
)
async def test_one_host_is_named_and_no_more(serve: Serve, head: bytes, status: int) -> None:
    async with serve() as peer:
        assert await peer.status_after(head) == status
        reader, writer = await peer.say(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_who_still_writes_when_refused_gets_the_answer_and_an_end_and_no_reset(serve: Serve) -> None:
    async with serve(head_bytes=4096) as peer:
        for _ in range(10):
            reader, writer = await peer.say(b"GET / HTTP/1.1\r\nx: " + b"y" * 8192)
            for _ in range(8):
                await asyncio.sleep(0.005)
                writer.write(b"y" * 65536)
                await writer.drain()
            assert b" 431 " in await asyncio.wait_for(reader.read(), 5)
            writer.close()


async def test_who_never_stops_writing_is_hung_up_on_all_the_same(serve: Serve) -> None:
    async with serve(head_bytes=4096) as peer:
        _, writer = await peer.say(b"GET / HTTP/1.1\r\nx: " + b"y" * 8192)

        async def write_on() -> None:
            while True:
                writer.write(b"y" * 65536)
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(write_on(), 10)


async def test_a_body_is_no_part_of_the_head(serve: Serve) -> None:
    async with serve(head_bytes=2000) as peer:
        reader, writer = await peer.say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000)
        assert b"200" in await reader.readline()
        writer.write(GET)
        await reader.readuntil(b"5000")
        assert b"200" in await reader.readuntil(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    async with serve(head_timeout=0.2) as peer:
        assert await peer.status_after(b"") == 0
        assert await peer.status_after(b"GET / HTTP/1.1\r\nhos") == 408


async def test_a_head_that_trickles_does_not_win_time(serve: Serve) -> None:
    async with serve(head_timeout=0.3) as peer:
        reader, writer = await peer.say(b"GET / HTTP/1.1\r\n")
        started = time.monotonic()
        answer = asyncio.ensure_future(reader.read())
        while not answer.done() and time.monotonic() < started + 3:
            with contextlib.suppress(ConnectionError):
                writer.write(b"a: b\r\n")
            await asyncio.sleep(0.05)
        assert time.monotonic() - started < 1
        with contextlib.suppress(ConnectionError):
            assert b"408" in await answer


async def test_the_second_request_of_a_connection_has_its_time_too(serve: Serve) -> None:
    async with serve(head_timeout=0.3) as peer:
        for rest in (b"GET / HT", b"\r\n"):
            reader, writer = await peer.say(GET)
            await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(0.5)  # longer than a head may take, but none has begun
            writer.write(rest)
            await asyncio.wait_for(reader.read(), 2)
            writer.close()


async def test_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    async with serve(body_timeout=0.3) as peer:
        assert await peer.status_after(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\nabc") == 408
        for _ in range(100):
            await asyncio.sleep(0.01)
            if peer.disconnects:
                break
        assert peer.disconnects == 1


async def test_a_body_that_keeps_coming_may_take_longer(serve: Serve) -> None:
    async with serve(body_timeout=0.3) as peer:
        reader, writer = await peer.say(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n")
        for _ in range(6):
            writer.write(b"x" * 10_000)
            await asyncio.sleep(0.1)
        assert b"200" in await reader.readline()
        writer.close()


async def test_an_idle_connection_is_closed(serve: Serve) -> None:
    async with serve(idle_timeout=0.2) as peer:
        reader, writer = await peer.say(GET)
        started = time.monotonic()
        assert (await asyncio.wait_for(reader.read(), 3)).endswith(b"0\r\n\r\n")
        assert time.monotonic() - started < 2
        writer.close()


async def test_more_connections_than_allowed_are_told_so(serve: Serve) -> None:
    async with serve(connections=2) as peer:
        held = [await peer.say(b"GET") for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await peer.status_after(GET) == 503
        held[0][1].close()
        await asyncio.sleep(0.05)
        reader, writer = await peer.say(GET)
        assert b"200" in await reader.readline()
        for closing in (writer, held[1][1]):
            closing.close()


async def test_what_is_no_http_gets_a_400_in_the_one_shape(serve: Serve) -> None:
    async with serve() as peer:
        assert await peer.status_after(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") == 400
        assert await peer.status_after(b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n") == 400
        both = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        assert await peer.status_after(both) == 400


async def test_who_does_not_read_is_cut_off_and_has_grown_no_buffer(serve: Serve) -> None:
    async with serve(write_timeout=0.5) as peer:
        _, writer = await slow(peer)
        started = time.monotonic()
        while not peer.disconnects:
            assert time.monotonic() - started < 5
            await asyncio.sleep(0.05)
        assert peer.written < 2 << 20  # what two sockets hold, and no more
        writer.close()


async def test_who_reads_slowly_but_reads_is_kept(serve: Serve) -> None:
    async with serve(write_timeout=1.0) as peer:
        reader, writer = await slow(peer)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            await reader.read(40_000)  # a thousandth of what the app would write
            await asyncio.sleep(0.1)
        assert not peer.disconnects
        writer.close()


async def slow(peer: Peer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to an endless answer, with little room on the way."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", peer.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=20_000)
    writer.write(b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
    return reader, writer
