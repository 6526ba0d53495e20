"""Health: /health/live, /health/ready, /health, /version.

Ready means that the engine has just answered: Triton's own readiness stays green when the model behind it has
died.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from conch.gateway.context import Context
from conch.gateway.errors import body_of, headers_of
from conch.gateway.keys.authority import needs
from conch_build.errors import ConchError


def router(context: Context) -> APIRouter:
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
                await served.servers.probe()
        except ConchError as error:
            return JSONResponse({"status": "not ready", **body_of(error)}, 503, headers_of(503))
        return JSONResponse({"status": "ready"})

    @router.get("/version", dependencies=[needs()])
    async def conch_version() -> dict[str, str]:
        return {"version": version("conch")}

    return router
