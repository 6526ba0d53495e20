"""Servers that speak OpenAI and misbehave: their callers get an error of OpenAI's shape, or another server's answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI

from conch.gateway.app import create_app
from conch.gateway.settings import GatewaySettings, ModelSettings
from conch_build.plan_gateway import Gateway
from conch_build.plan_models import GatewayModel
from tests.gateway.apps import client

SECRET = "password=hunter2"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def whole(text: str = "hi") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "chatcmpl-7", "object": "chat.completion", "model": "theirs", "choices": [choice], "usage": usage}


async def good(request: web.Request) -> web.StreamResponse:
    return web.json_response(whole())


def saying(status: int, body: str, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, headers=headers)

    return handler


def streaming(*parts: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part.encode())
            await asyncio.sleep(0.05)
        return response

    return handler


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """Its base URL. Probes it answers as a good one does: only requests meet what it is made for."""

    async def chat(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        return await (good if asked["messages"][0]["content"] == "1" else handler)(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"{site.name}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def relaying(home: Path, *handlers: Handler) -> AsyncIterator[FastAPI]:
    """A gateway before a server for each handler, asked in that order."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(server(handler)) for handler in handlers]
        plan = GatewayModel.model_validate({"servers": [{"openai": url} for url in urls]})
        app = create_app(GatewaySettings((ModelSettings.of("ours", plan),), Gateway(), home))
        await stack.enter_async_context(app.router.lifespan_context(app))
        yield app


async def ask(app: FastAPI, **fields: Any) -> httpx.Response:
    async with client(app) as http:
        return await http.post("/v1/chat/completions", json={**HELLO, **fields})


async def ended(app: FastAPI, reason: str) -> float:
    async with client(app) as http:
        for line in (await http.get("/metrics")).text.splitlines():
            if line.startswith("vllm:request_success_total") and f'finished_reason="{reason}"' in line:
                return float(line.rsplit(" ", 1)[1])
    return 0.0


async def test_what_one_server_fails_another_answers_and_it_counts_once(tmp_path: Path) -> None:
    async with relaying(tmp_path, saying(500, SECRET), good) as app:
        answer = await ask(app)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["model"], answer.json()["choices"][0]["message"]["content"]) == ("ours", "hi")
        assert (await ended(app, "stop"), await ended(app, "error")) == (1, 0)


@pytest.mark.parametrize(
    "handler, status",
    [
        (saying(500, SECRET), 502),
        (saying(400, json.dumps({"error": {"message": SECRET}})), 400),
        (saying(401, SECRET), 503),
        (saying(302, "", location="http://127.0.0.1:9/elsewhere"), 502),
        (saying(200, SECRET), 502),
        (saying(200, ""), 502),
        (saying(200, json.dumps([SECRET])), 502),
        (saying(429, SECRET), 429),
    ],
    ids=["500", "400", "401", "redirect", "no JSON", "nothing", "no object", "429"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_told_in_our_words(tmp_path: Path, handler: Handler, status: int, stream: bool) -> None:
    async with relaying(tmp_path, handler) as app:
        answer = await ask(app, stream=stream)
    assert SECRET not in answer.text
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


CHUNK = 'data: {"id":"c","model":"theirs","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    "parts",
    [(CHUNK, 'data: {"choices": [{"ind'), (CHUNK,), (CHUNK, f'data: {{"error": {{"message": "{SECRET}"}}}}\n\n')],
    ids=["cut", "no end", "error event"],
)
async def test_a_stream_that_breaks_ends_with_an_error_event(tmp_path: Path, parts: tuple[str, ...]) -> None:
    async with relaying(tmp_path, streaming(*parts)) as app:
        answer = await ask(app, stream=True)
        assert (await ended(app, "error"), await ended(app, "stop")) == (1, 0)
    assert SECRET not in answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event.get("model") for event in events[:-1]] == ["ours"]
    assert events[-1]["error"]["code"] == "engine_error"
