"""One streamed answer of an OpenAI API over a plain socket, timed.

A general HTTP client costs more time a token than the gateway does, and would measure itself. Knows just enough
of HTTP/1.1 for this: one request a connection, a chunked answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from conch.bench.figures import Timing
from conch.remote import refusal
from conch_build.errors import ConchError, InputError, ServiceError, UnavailableError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_TEXT = {CHAT: b'"content":"', COMPLETIONS: b'"text":"'}
"""How a piece of text begins in the chunks of each endpoint."""


async def timed_stream(url: str, path: str, body: Mapping[str, Any]) -> Timing:
    """Send `body` to an endpoint and time its tokens. Raises what a refusal stands for, or ServiceError."""
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    host, port = _address(url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    started = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise UnavailableError(
            f"no connection: {error.strerror or error}", where=url, fix="`conch serve` starts a gateway."
        ) from None
    try:
        writer.write(head.encode() + payload)
        status = (await reader.readline()).split(b" ", 2)
        if len(status) < 2 or status[1] != b"200":
            raise await _refusal(reader, status, url)
        await reader.readuntil(b"\r\n\r\n")
        return await _timed_events(reader, _TEXT[path], started, url)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ServiceError(f"the connection broke: {error}", where=url) from None
    finally:
        writer.close()


async def _timed_events(reader: asyncio.StreamReader, text: bytes, started: float, url: str) -> Timing:
    arrivals: list[float] = []
    tail = b""
    while data := await reader.read(65536):
        tail = (tail + data)[-4096:]
        ends = b"data: [DONE]" in tail
        # The chunks that open an answer and end it have an empty text. The end counts: the last tokens may have none.
        if ends or data.count(text) > data.count(text + b'"'):
            arrivals.append(time.perf_counter() - started)
        if ends:
            break
    usage = _usage(tail)
    if usage is None:
        raise ServiceError("the stream ended without its usage", where=url)
    return Timing(tuple(arrivals), usage["completion_tokens"], usage["prompt_tokens"])


def _usage(tail: bytes) -> dict[str, int] | None:
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {") and b'"usage":{' in line:
            usage: dict[str, int] = json.loads(line[6:])["usage"]
            return usage
    return None


async def _refusal(reader: asyncio.StreamReader, status: list[bytes], url: str) -> ConchError:
    if len(status) < 2 or not status[1].isdigit():
        return ServiceError("its answer is not HTTP", where=url)
    await reader.readuntil(b"\r\n\r\n")
    return refusal(int(status[1]), await reader.read(), url)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InputError("is not an http:// address", where=url)
    return parts.hostname, parts.port or 80
