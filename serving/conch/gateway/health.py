"""Health and figures: /health/live, /health/ready, /health, /version, /metrics.

Ready means that the engine has just answered: Triton's own readiness stays green when the model behind it has
died.
"""

from __future__ import annotations

import contextlib
from importlib.metadata import version

import httpx
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from conch.gateway.context import Context
from conch.gateway.errors import body_of, headers_of
from conch.gateway.metrics import adapter_info, read_engine
from conch.gateway.served import Served
from conch_build.errors import ConchError


def router(context: Context, http: httpx.AsyncClient) -> APIRouter:
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @router.get("/health/ready")
    @router.get("/health")
    async def ready() -> Response:
        """The engines answer, and new requests are taken."""
        if context.lifecycle.draining:
            return JSONResponse({"status": "draining"}, 503, headers_of(503))
        try:
            for served in context.catalog:
                await served.upstream.probe()
        except ConchError as error:
            return JSONResponse({"status": "not ready", **body_of(error)}, 503, headers_of(503))
        return JSONResponse({"status": "ready"})

    @router.get("/version")
    async def conch_version() -> dict[str, str]:
        return {"version": version("conch")}

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text: the gateway's metrics and the engine's gauges."""
        text = context.metrics.render().decode()
        for served in context.catalog:
            text += await _engine_figures(served, http)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


async def _engine_figures(served: Served, http: httpx.AsyncClient) -> str:
    """No figures of what does not answer, rather than old ones."""
    text = ""
    for server in served.settings.servers:
        if server.metrics_url is not None:
            text += await read_engine(http, server.metrics_url, served.name)
    if served.settings.adapters:
        with contextlib.suppress(ConchError):
            text += adapter_info(await served.upstream.adapters(), served.settings.adapter_slots)
    return text
