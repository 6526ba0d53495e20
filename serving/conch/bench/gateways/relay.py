"""The least that a gateway in FastAPI can be: `relay URL PORT` passes bodies on unread."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse


def create_app(upstream: str) -> FastAPI:
    app = FastAPI()
    client = httpx.AsyncClient(base_url=upstream, limits=httpx.Limits(max_connections=None), timeout=60)

    @app.get("/v1/models")
    async def models() -> Response:
        return Response((await client.get("/v1/models")).content, media_type="application/json")

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        body = await request.body()
        asked = client.build_request(
            "POST", "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        if b'"stream": true' not in body:
            answer = await client.send(asked)
            return Response(answer.content, answer.status_code, media_type="application/json")
        stream = await client.send(asked, stream=True)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in stream.aiter_raw():
                    yield chunk
            finally:
                await stream.aclose()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    url, port = sys.argv[1:]
    uvicorn.run(
        create_app(url),
        host="127.0.0.1",
        port=int(port),
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
    )
