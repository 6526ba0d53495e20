"""The FastAPI app: the pieces put together. Run it with `conch.gateway.server`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from conch.gateway import errors, health, openapi
from conch.gateway.chat import ChatCompletions
from conch.gateway.completions import Completions
from conch.gateway.context import Context
from conch.gateway.lifecycle import Lifecycle
from conch.gateway.metrics import Metrics
from conch.gateway.middleware import Admission, BodyLimit, Envelope
from conch.gateway.models import Models
from conch.gateway.responses import Responses
from conch.gateway.served import Catalog, Served
from conch.gateway.settings import GatewaySettings
from conch.gateway.tokens import Tokens
from conch_build.errors import ConchError


def create_app(settings: GatewaySettings, lifecycle: Lifecycle | None = None) -> FastAPI:
    """The gateway as an ASGI app. Call it inside the event loop that will run it. Raises SetupError."""
    metrics = Metrics()
    lifecycle = lifecycle or Lifecycle()
    catalog = Catalog(Served(model, metrics) for model in settings.models)
    http = httpx.AsyncClient(trust_env=False)
    context = Context(settings, metrics, lifecycle, catalog)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for served in catalog:
            with contextlib.suppress(ConchError):  # Triton may come later
                await served.upstream.probe()
        yield
        for served in catalog:
            await served.upstream.close()
        await http.aclose()

    app = FastAPI(title="Conch", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.include_router(ChatCompletions(context).router())
    app.include_router(Completions(context).router())
    app.include_router(Responses(context).router())
    app.include_router(Models(context).router())
    app.include_router(Tokens(context).router())
    app.include_router(health.router(context, http))
    described = openapi.document(app)
    app.add_api_route("/openapi.json", lambda: described, include_in_schema=False)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, limit=settings.body_bytes)
    app.add_middleware(Admission, lifecycle=lifecycle)
    app.add_middleware(Envelope)
    return app
