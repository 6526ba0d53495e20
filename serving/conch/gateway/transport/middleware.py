"""ASGI layers around the app: request ids, faults, a cap on bodies, no new work while draining.

Plain ASGI: Starlette's BaseHTTPMiddleware would buffer streams and hide disconnects.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conch.gateway import errors
from conch.gateway.transport.lifecycle import Lifecycle

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


_OF_PAGES = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""A page loads nothing from elsewhere, and is shown in no other one."""


class Envelope:
    """The outermost layer: echoes `x-request-id` or makes one, says how answers may be used, and answers what no
    other layer has caught."""

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
                scope["state"]["status"] = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["x-content-type-options"] = "nosniff"
                if headers.get("content-type", "").startswith("text/html"):
                    for name, value in _OF_PAGES.items():
                        headers.setdefault(name, value)
                headers.update(scope["state"].get("answer_headers", {}))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            return  # before its body was here: nobody is left to be told
        except Exception as error:
            answer = errors.internal_error(error, request_id)
            if started:
                raise
            await answer(scope, receive, send_with_id)


class BodyLimit:
    """413 for a body over the limit, whether its length is declared or only found out; `larger`: paths with a limit of
    their own."""

    def __init__(self, app: ASGIApp, limit: int, larger: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.limit = limit
        self.larger = larger or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limit = self.larger.get(scope["path"], self.limit)
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            return await self._refuse(limit, scope, receive, send)
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLarge:
            await self._refuse(limit, scope, receive, send)

    async def _refuse(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"The body is larger than {limit} bytes."
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
            refusal = errors.answer_to(errors.Draining(), headers={"connection": "close"})
            return await refusal(scope, receive, send)
        with self.lifecycle.running():
            await self.app(scope, receive, send)


class _TooLarge(Exception):
    """Carries the news from the reading end to the layer that answers."""
