"""A server of known timing with OpenAI's stream: the first token after `first` seconds, the others `between` apart.

`python -m conch.bench.traffic.toy FIRST BETWEEN` prints its address. What a measurement of it differs from these two is
the load generator's own doing (and the toy's), which is what it is for.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(data: object) -> bytes:
    """A server-sent event in a chunk of its own."""
    payload = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: float, between: float) -> None:
    """Requests of one connection, one after the other."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            begun = loop.time()
            length = re.search(rb"content-length: (\d+)", head, re.I)
            body = json.loads(await reader.readexactly(int(length[1]))) if length else {}
            if not length:
                names = json.dumps({"data": [{"id": "toy"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(names), names))
                continue
            tokens = int(body["max_tokens"])
            writer.write(_HEAD + event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
            for number in range(tokens):
                await asyncio.sleep(max(begun + first + number * between - loop.time(), 0))
                writer.write(event({"choices": [{"index": 0, "text": "a", "delta": {"content": "a"}}]}))
            usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
            writer.write(event({"choices": [], "usage": usage}) + event("[DONE]") + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def toy_server(first: float, between: float) -> AsyncIterator[str]:
    """Its address, while it runs in this event loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer, first, between)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _run(first: float, between: float) -> None:
    async with toy_server(first, between) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(float(sys.argv[1]), float(sys.argv[2])))
