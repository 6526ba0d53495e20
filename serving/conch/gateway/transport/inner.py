"""Requests that the gateway makes of itself: through the handlers of live ones, without a socket."""

from __future__ import annotations

import asyncio
import uuid

from fastapi import Request
from starlette.types import Message, Scope


def inner_request(path: str, body: bytes) -> Request:
    """A POST that nobody leaves."""
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": {"request_id": uuid.uuid4().hex},
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # nobody is there who could leave
        raise AssertionError("nothing sets that event")

    return Request(scope, receive)
