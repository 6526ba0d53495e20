"""Passes requests on without `continuous_usage_stats`, which GuideLLM always asks for and the gateway does not have."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from urllib.parse import urlsplit

_UNWANTED = re.compile(rb',?\s*"continuous_usage_stats":\s*true')
_LENGTH = re.compile(rb"content-length: (\d+)", re.I)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    from_server, to_server = await asyncio.open_connection(host, port)

    async def back() -> None:
        while data := await from_server.read(65536):
            writer.write(data)
        writer.close()

    backwards = asyncio.create_task(back())
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = _UNWANTED.sub(b"", await reader.readexactly(int(length[1]))) if length else b""
            to_server.write(_LENGTH.sub(b"content-length: %d" % len(body), head) + body)
    to_server.close()
    await backwards


async def main(url: str) -> None:
    parts = urlsplit(url)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer, str(parts.hostname), int(parts.port or 80))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
