"""Requests of known timing, and servers that answer as a script says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conch.bench.traffic.record import Record
from conch.bench.traffic.toy import event

Script = Sequence[tuple[float, Any]]
"""Milliseconds after the request -> the event that comes then."""


def answered(sent: float, *arrivals: float, tokens: int | None = None, due: float | None = None) -> Record:
    """A request that was sent at `sent` and got a token at each of `arrivals`."""
    record = Record(0, "m", sent if due is None else due, sent=sent, prompt_tokens=10)
    for when in arrivals:
        record.arrived(when)
    record.tokens, record.ended = tokens or len(arrivals), arrivals[-1]
    return record


@asynccontextmanager
async def scripted(script: Script, status: bytes = b"200 OK") -> AsyncIterator[str]:
    """A server that answers every request with the events of a script."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        begun = asyncio.get_running_loop().time()
        await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
        writer.write(b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        for when, data in script:
            await asyncio.sleep(max(begun + when / 1e3 - asyncio.get_running_loop().time(), 0))
            writer.write(event(data))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, **more}]}


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`conch ...` in this process: exit code, stdout, stderr."""
    from conch.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        try:
            main(list(words), standalone_mode=False)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run
