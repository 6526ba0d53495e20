"""ASGI layers around the app: request ids, faults, a cap on bodies, no new work while draining.

Plain ASGI: Starlette's BaseHTTPMiddleware would buffer streams and hide disconnects.
"""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conch.gateway import errors
from conch.gateway.lifecycle import Lifecycle

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Envelope:
    """The outermost layer: echoes `x-request-id` or makes one, and answers what no other layer has caught."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            answer = errors.internal_error(error, request_id)
            if started:
                raise
            await answer(scope, receive, send_with_id)


class BodyLimit:
    """413 for a body over the limit, whether its length is declared or only found out."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self.limit:
            return await self._refuse(scope, receive, send)
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise _TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLarge:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"The body is larger than {self.limit} bytes."
        # Closing tells the client that the rest of the body is not wanted.
        refusal = errors.response(413, message, code="body_too_large", headers={"connection": "close"})
        await refusal(scope, receive, send)


class Admission:
    """Count the API requests that run; refuse new ones while draining."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self.app = app
        self.lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return await self.app(scope, receive, send)
        if self.lifecycle.draining:
            message = "The gateway is shutting down; send the request to another one."
            refusal = errors.response(503, message, code="shutting_down", headers={"connection": "close"})
            return await refusal(scope, receive, send)
        with self.lifecycle.running():
            await self.app(scope, receive, send)


class _TooLarge(Exception):
    """Carries the news from the reading end to the layer that answers."""
