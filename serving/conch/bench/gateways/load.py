"""Chat requests over plain sockets that stay open, timed: a general HTTP client would measure itself."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from conch_build.errors import ServiceError

_PROMPT = "Say hello to the world, and ask what you can do for it. " * 4


@dataclass
class Taken:
    """Of one run: seconds of each request, of the gaps between the chunks of each stream, and of the whole run."""

    requests: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.requests) / self.seconds


async def run(url: str, model: str, *, at_once: int, seconds: float, tokens: int = 0, key: str = "-") -> Taken:
    """`at_once` callers, each asking again as soon as it is answered; `tokens` above 0: streams of so many chunks.

    Raises ServiceError for anything but 200.
    """
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    asked: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": _PROMPT}]}
    asked |= {"max_tokens": tokens or 8, "stream": tokens > 0}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    taken = Taken()
    began = time.perf_counter()
    until = began + seconds

    async def caller() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            while time.perf_counter() < until:
                sent = time.perf_counter()
                writer.write(head.encode() + body)
                await (_stream(reader, taken) if tokens else _whole(reader))
                taken.requests.append(time.perf_counter() - sent)
        finally:
            writer.close()

    await asyncio.gather(*(caller() for _ in range(at_once)))
    taken.seconds = time.perf_counter() - began
    return taken


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ServiceError(f"the gateway said {head[:200].decode(errors='replace')}")
    return head


async def _whole(reader: asyncio.StreamReader) -> None:
    head = await _head(reader)
    if b"content-length:" in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")


async def _stream(reader: asyncio.StreamReader, taken: Taken) -> None:
    await _head(reader)
    tail, before = b"", None
    while not tail.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 16)
        if not data:
            raise ServiceError("the stream ended early")
        now = time.perf_counter()
        if before is not None:
            taken.gaps.append(now - before)
        tail, before = (tail + data)[-16:], now
