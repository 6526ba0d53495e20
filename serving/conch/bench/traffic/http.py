"""HTTP/1.1 for a load generator: connections that are kept, and a clock read at every arrival of bytes.

A general client costs more time a token than a gateway does, and would measure itself; llhttp (httptools) does not.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from conch_build.errors import InputError, ServiceError, UnavailableError

OnBody = Callable[[bytes], None]


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    secure: bool
    path: str
    """Before that of an endpoint, without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InputError("is not an http:// or https:// address", where=url)
        secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"))


class Connection(asyncio.Protocol):
    """One exchange at a time. Bodies with status 200 go to `on_body`, others are the answer's text."""

    def __init__(self) -> None:
        self.alive = True
        self._done: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def exchange(self, request: bytes, on_body: OnBody) -> tuple[int, bytes]:
        """Status and, unless it is 200, the body. Raises ServiceError when the connection breaks."""
        import httptools

        self._parser: Any = httptools.HttpResponseParser(self)
        self._on_body, self._text = on_body, b""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        self.alive = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        import httptools

        if self._done is None or self._done.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("its answer is not HTTP")

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        self._fail("the connection broke before the answer's end")

    # What httptools calls.

    def on_body(self, body: bytes) -> None:
        if self._done is None or self._done.done():
            return
        if self._parser.get_status_code() != 200:
            self._text += body
            return
        try:
            self._on_body(body)
        except Exception as error:
            self._done.set_exception(error)

    def on_message_complete(self) -> None:
        self.alive = self.alive and bool(self._parser.should_keep_alive())
        if self._done and not self._done.done():
            self._done.set_result((self._parser.get_status_code(), self._text))

    def _fail(self, what: str) -> None:
        self.alive = False
        if self._done and not self._done.done():
            self._done.set_exception(ServiceError(what))


class Pool:
    """Connections to one address; a request takes an idle one or opens another."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self.address = Address.of(url)
        self._secure = ssl.create_default_context() if self.address.secure else None
        self._idle: list[Connection] = []
        given = {"Host": f"{self.address.host}:{self.address.port}", "Content-Type": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())

    async def post(self, path: str, body: bytes, on_body: OnBody) -> tuple[int, bytes]:
        """As `Connection.exchange`. Leaving it early closes the connection."""
        head = f"POST {self.address.path}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        connection = await self._connection()
        answer = await connection.exchange(head.encode() + body, on_body)
        if connection.alive:
            self._idle.append(connection)
        else:
            connection.drop()
        return answer

    async def close(self) -> None:
        for connection in self._idle:
            connection.drop()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                Connection, self.address.host, self.address.port, ssl=self._secure
            )
        except OSError as error:
            raise UnavailableError(
                f"no connection: {error.strerror or error}", where=self.url, fix="Is the server running there?"
            ) from None
        return connection
