"""One streamed answer, timed: what counts as an arrival, and what a refusal becomes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from conch.bench.http import CHAT, COMPLETIONS, timed_stream
from conch_build.errors import OverloadedError, ServiceError, UnavailableError

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
DONE = b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def server(*pieces: bytes, status: bytes = b"200 OK") -> AsyncIterator[str]:
    """Answers any request with `pieces`, a moment apart."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
        writer.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n")
        for piece in pieces:
            await asyncio.sleep(0.05)
            writer.write(piece)
            await writer.drain()
        writer.close()

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


def text(content: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,"text":"' + content + b'"}]}\n\n'


async def test_each_piece_of_text_is_an_arrival_and_so_is_the_end() -> None:
    async with server(text(b"a"), text(b"b"), text(b""), USAGE + DONE) as url:
        timing = await timed_stream(url, COMPLETIONS, {})
    assert (timing.tokens, timing.prompt_tokens, len(timing.arrivals)) == (3, 7, 3)
    assert 0.04 < timing.first < timing.last


async def test_a_chats_opening_chunk_is_no_token() -> None:
    opening = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    piece = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    async with server(opening, piece, USAGE + DONE) as url:
        timing = await timed_stream(url, CHAT, {})
    assert len(timing.arrivals) == 2
    assert timing.first > 0.09


async def test_a_piece_that_comes_with_the_end_counts_once() -> None:
    async with server(text(b"a") + text(b"") + USAGE + DONE) as url:
        assert len((await timed_stream(url, COMPLETIONS, {})).arrivals) == 1


async def test_a_stream_that_breaks_off_is_an_error() -> None:
    async with server(text(b"a")) as url:
        with pytest.raises(ServiceError, match="ended without its usage"):
            await timed_stream(url, COMPLETIONS, {})


async def test_a_refusal_is_told_in_the_servers_words() -> None:
    async with server(b'{"error": {"message": "too many"}}', status=b"429 Too Many Requests") as url:
        with pytest.raises(OverloadedError, match="too many"):
            await timed_stream(url, COMPLETIONS, {})


async def test_no_server_is_told_from_a_broken_one() -> None:
    with pytest.raises(UnavailableError, match="no connection"):
        await timed_stream("http://127.0.0.1:9", COMPLETIONS, {})
