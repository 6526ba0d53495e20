"""The FastAPI app: the pieces put together. Run it with `conch.gateway.server`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from conch.gateway import errors, health
from conch.gateway.chat import ChatCompletions
from conch.gateway.completions import Completions
from conch.gateway.context import Context
from conch.gateway.lifecycle import Lifecycle
from conch.gateway.metrics import Metrics
from conch.gateway.middleware import Admission, BodyLimit, Envelope
from conch.gateway.models import Models
from conch.gateway.settings import GatewaySettings
from conch.gateway.tokenizer import Tokenizer
from conch.gateway.upstream import Upstream
from conch_build.errors import ConchError


def create_app(settings: GatewaySettings, lifecycle: Lifecycle | None = None) -> FastAPI:
    """The gateway as an ASGI app. Call it inside the event loop that will run it. Raises SetupError."""
    tokenizer = Tokenizer(settings.tokenizer)
    metrics = Metrics(settings.model_name)
    lifecycle = lifecycle or Lifecycle()
    upstream = Upstream(settings.grpc_url, tokenizer, metrics)
    http = httpx.AsyncClient(trust_env=False)
    context = Context(settings, tokenizer, metrics, lifecycle, upstream)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with contextlib.suppress(ConchError):  # Triton may come later
            await upstream.probe()
        yield
        await upstream.close()
        await http.aclose()

    app = FastAPI(title="Conch", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.include_router(ChatCompletions(context).router())
    app.include_router(Completions(context).router())
    app.include_router(Models(context).router())
    app.include_router(health.router(context, http))
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, limit=settings.limits.body_bytes)
    app.add_middleware(Admission, lifecycle=lifecycle)
    app.add_middleware(Envelope)
    return app
