"""The FastAPI app: the pieces put together. Run it with `conch.gateway.transport.server`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from conch.gateway import errors, openapi
from conch.gateway.ab import feedback
from conch.gateway.ab.experiments import Experiments
from conch.gateway.admission.gate import Queues
from conch.gateway.background import background
from conch.gateway.batches.service import Batching
from conch.gateway.batches.upload import FORM_BYTES
from conch.gateway.context import Context
from conch.gateway.database import Database
from conch.gateway.endpoints import health
from conch.gateway.endpoints.chat import ChatCompletions
from conch.gateway.endpoints.completions import Completions
from conch.gateway.endpoints.models import Models
from conch.gateway.endpoints.responses import Responses
from conch.gateway.endpoints.tokens import Tokens
from conch.gateway.keys.authority import Authority, needs
from conch.gateway.keys.limits import KeyLimits
from conch.gateway.ledger.writing import Ledger
from conch.gateway.routing.pool import PoolFigures
from conch.gateway.served import Catalog, Served
from conch.gateway.settings import GatewaySettings
from conch.gateway.sharing.answers import Answers
from conch.gateway.sharing.limits import SharedLimits
from conch.gateway.sharing.store import Shared
from conch.gateway.transport.lifecycle import Lifecycle
from conch.gateway.transport.middleware import Admission, BodyLimit, Envelope
from conch.gateway.watching.metrics import Metrics
from conch.gateway.watching.observability import Observability
from conch.gateway.watching.record import Telling
from conch_build.errors import ConchError


def create_app(settings: GatewaySettings, lifecycle: Lifecycle | None = None) -> FastAPI:
    """The gateway as an ASGI app. Call it inside the event loop that will run it. Raises SetupError."""
    metrics = Metrics()
    lifecycle = lifecycle or Lifecycle()
    catalog = Catalog(Served(model, metrics) for model in settings.models)
    metrics.registry.register(PoolFigures({served.name: served.pools for served in catalog}))
    observability = Observability(settings.plan, metrics)
    http = httpx.AsyncClient(trust_env=False)
    queues = Queues(settings.plan.queue, catalog, metrics.registry)
    lifecycle.on_drain(queues.clear)
    database = Database.at(settings.plan.database.url, settings.home)
    shared = Shared(settings.plan.redis.url, metrics.registry) if settings.plan.redis.url else None
    shared_limits = SharedLimits(shared) if shared else None
    limits = KeyLimits(metrics.registry, shared_limits)
    authority = Authority(database, limits, guarded=settings.require_key)
    ledger = Ledger(database, settings.models, settings.price, metrics.registry)
    for served in catalog:
        served.servers.pool.on_change(functools.partial(ledger.resize, served.name))
    experiments = Experiments(settings.plan.experiments, database, catalog)
    observers = [*observability.first, authority, limits, queues, ledger, experiments, *observability.observers]
    answers = Answers(settings.plan.cache, shared, lifecycle, metrics.registry)
    context = Context(settings, metrics, lifecycle, catalog, experiments, answers, observers)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for served in catalog:
            with contextlib.suppress(ConchError):  # Triton may come later
                await served.servers.probe()
        async with (
            contextlib.AsyncExitStack() as stack,
            observability.running(),
            authority.following(),
            ledger.writing(),
            experiments.running(),
            batching.running(),
        ):
            if shared is not None and shared_limits is not None:
                await stack.enter_async_context(shared.following())
                await stack.enter_async_context(shared_limits.renewing())
            for served in catalog:
                for pool in served.pools:
                    await stack.enter_async_context(pool.watched())
            if settings.membership is not None:
                await stack.enter_async_context(background(settings.membership(catalog)))
            yield
        await http.aclose()
        await database.close()

    app = FastAPI(title="Conch", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.authority = authority
    errors.install(app)
    chat, completions = ChatCompletions(context), Completions(context)
    experiments.shadows.handlers = {
        "chat.completions": chat.answer,
        "completions": completions.answer,
        "responses": chat.answer,  # its body is a chat's
    }
    app.include_router(chat.router(), dependencies=[needs("inference")])
    app.include_router(completions.router(), dependencies=[needs("inference")])
    responses = Responses(context)
    handlers = {
        "/v1/chat/completions": chat.create,
        "/v1/completions": completions.create,
        "/v1/responses": responses.create,
    }
    batching = Batching(context, database, handlers, authority.key_for)
    app.include_router(responses.router(), dependencies=[needs("inference")])
    app.include_router(batching.router(), dependencies=[needs("batch")])
    app.include_router(Models(context).router(), dependencies=[needs()])
    app.include_router(Tokens(context).router(), dependencies=[needs("inference")])
    app.include_router(feedback.router(experiments), dependencies=[needs("inference")])
    app.include_router(health.router(context))
    app.include_router(observability.router(context, http, [needs("metrics")]))
    described = openapi.document(app)
    app.add_api_route("/openapi.json", lambda: described, include_in_schema=False, dependencies=[needs()])
    # The last one added is the outermost.
    uploads = {"/v1/files": settings.plan.batches.file_bytes + FORM_BYTES}
    app.add_middleware(BodyLimit, limit=settings.plan.limits.body_bytes, larger=uploads)
    app.add_middleware(Admission, lifecycle=lifecycle)
    app.add_middleware(Envelope)
    app.add_middleware(Telling, tellers=observability.tellers)
    return app
