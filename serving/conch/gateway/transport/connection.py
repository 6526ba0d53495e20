"""One client's connection: how much it may send as a head, and how long it may take to send and to read.

Beneath the app, as only here is seen what has not yet become a request. Knows nothing of what requests ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from conch.gateway import errors
from conch.gateway.transport.hanging_up import HangingUp
from conch_build.plan_admission import Limits

_MOST_HEADERS = 128
_BODY_BYTES_A_SECOND = 16 << 10


class Connection(HttpToolsProtocol):
    limits: ClassVar[Limits]

    @classmethod
    def within(cls, limits: Limits) -> type[Connection]:
        """The class of a server's connections."""
        return type("LimitedConnection", (cls,), {"limits": limits})

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._coming: Literal["nothing", "head", "body"] = "nothing"
        self._head_bytes = 0
        self._body_bytes = 0
        self._body_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", HangingUp(transport, self._more_may_come)))
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "The gateway has as many connections as it takes.", "too_many_connections")
        else:
            self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._timer)
        _stop(self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._coming == "nothing" and self.cycle.response_complete:
            self._begin_head()
        if self._coming == "head":
            self._head_bytes += len(data)
        super().data_received(data)
        # Behind the parser, as what comes with the end of a head is no part of it.
        if self._coming == "head" and self._head_bytes > self.limits.head_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._coming == "nothing":
            self._begin_head()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        if size > self.limits.head_bytes or len(self.headers) > _MOST_HEADERS:
            return self._refuse_head()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            return self.send_400_response("")
        super().on_headers_complete()
        self._coming, self._body_bytes, self._body_since = "body", 0, self.loop.time()
        if not self.pipeline:
            self._within(self.limits.body_timeout, self._body_is_late)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._coming = "nothing"
        _stop(self._timer)
        if not self.transport.is_closing():
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        _stop(self._write_timer)
        super().resume_writing()

    def _unsupported_upgrade_warning(self) -> None:
        """Nobody is told to install what would not help: there are no WebSockets here."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is no HTTP request that can be read.", "invalid_http")

    def _more_may_come(self) -> bool:
        if self._coming == "nothing":
            return self.cycle is None
        return self._coming == "body" or self._head_bytes > 0

    def _begin_head(self) -> None:
        self._coming, self._head_bytes = "head", 0
        self._within(self.limits.head_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(408, "The headers took too long to come.", "request_timeout")
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        seconds = self.limits.body_timeout + self._body_bytes / _BODY_BYTES_A_SECOND
        left = self._body_since + seconds - self.loop.time()
        if left > 0:
            self._within(left, self._body_is_late)
        else:
            self._refuse(408, "The body took too long to come.", "request_timeout")

    def _watch_writing(self, unread: int) -> None:
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < unread and not self.transport.is_closing():
                self._watch_writing(left)
            else:
                self.transport.abort()

        self._write_timer = self.loop.call_later(self.limits.write_timeout, look)

    def _refuse_head(self) -> None:
        words = f"Request line and headers are more than {self.limits.head_bytes} bytes or {_MOST_HEADERS} headers."
        self._refuse(431, words, "headers_too_large")

    def _refuse(self, status: int, words: str, code: str) -> None:
        """Answer in the app's place, and hang up; what is in the middle of an answer is cut."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            return self.transport.abort()
        answer = errors.response(status, words, code=code, headers={"connection": "close"})
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        phrase = HTTPStatus(status).phrase.encode()
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, phrase, head, answer.body))
        self.transport.close()

    def _within(self, seconds: float, late: Callable[[], None]) -> None:
        _stop(self._timer)
        self._timer = self.loop.call_later(seconds, late)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
