"""An OpenAI server that does next to nothing: `python -m conch.bench.gateways.upstream PORT`.

Every chat completion gets the same answer. A stream has as many chunks as `max_tokens` says, all at once or
`GAP_MS` apart (from the environment).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import cast

MODEL = "upstream"
_GAP = float(os.environ.get("GAP_MS", "0")) / 1000
_ENVELOPE = {"id": "chatcmpl-1", "created": 1, "model": MODEL}


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    body = {**_ENVELOPE, "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _framed(event: bytes) -> bytes:
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def _whole(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)) + body


_USAGE = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
_MESSAGE = {"role": "assistant", "content": "Hello, what can I do?"}
_ANSWER = _whole(
    b"application/json",
    json.dumps(
        {
            **_ENVELOPE,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}],
            "usage": _USAGE,
        }
    ).encode(),
)
_MODELS = _whole(
    b"application/json",
    json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "-"}]}).encode(),
)
_OPENING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST, _TOKEN, _LAST = (
    _framed(_chunk({"role": "assistant", "content": ""})),
    _framed(_chunk({"content": " token"})),
    _framed(_chunk({}, "stop")) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n",
)


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._unread = b""
        self._work: asyncio.Task[None] | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            head = self._unread[:end].lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            if len(self._unread) < end + 4 + size:
                return
            body, self._unread = self._unread[end + 4 : end + 4 + size], self._unread[end + 4 + size :]
            if not size:
                self._transport.write(_MODELS)
                continue
            asked = json.loads(body)
            if asked.get("stream"):
                self._work = asyncio.ensure_future(self._stream(asked.get("max_tokens", 8)))
            else:
                self._transport.write(_ANSWER)

    async def _stream(self, tokens: int) -> None:
        if not _GAP:
            return self._transport.write(_OPENING + _FIRST + _TOKEN * tokens + _LAST)
        self._transport.write(_OPENING + _FIRST)
        for _ in range(tokens):
            await asyncio.sleep(_GAP)
            self._transport.write(_TOKEN)
        self._transport.write(_LAST)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port)
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.install()
    asyncio.run(_serve(int(sys.argv[1])))
