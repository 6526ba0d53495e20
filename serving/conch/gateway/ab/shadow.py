"""Shadow traffic: what a model would have made of the requests that another one answers. Nobody gets its answers.

A copy goes the way of a live request, whole and in the flex tier, after its original has been answered; more than
`max_running` at once are not made.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request, Response

from conch.gateway.exchange import Chosen, Exchange
from conch.gateway.protocol import Generation
from conch.gateway.transport.inner import inner_request
from conch_build.errors import ConchError
from conch_build.plan_experiments import SHADOW, Shadow

Handler = Callable[[Request, Any], Awaitable[Response]]

log = logging.getLogger("conch.gateway")


class Shadows:
    def __init__(self) -> None:
        self.handlers: Mapping[str, Handler] = {}
        """By the name of an exchange's endpoint."""
        self._running: dict[str, set[asyncio.Task[None]]] = {}

    def copy(self, exchange: Exchange, experiment: str, plan: Shadow) -> None:
        """Ask the shadow the same, unless chance or too many copies are against it."""
        running = self._running.setdefault(experiment, set())
        if len(running) >= plan.max_running or random.random() >= plan.share:
            return
        update = {"model": plan.model, "stream": False, "stream_options": None, "service_tier": "flex"}
        body = exchange.body.model_copy(update=update)
        request = inner_request("/shadow", b"")
        request.state.chosen = Chosen(experiment, SHADOW, plan.model)
        task = asyncio.ensure_future(self._ask(self.handlers[exchange.endpoint], request, body))
        running.add(task)
        task.add_done_callback(running.discard)

    async def end(self) -> None:
        tasks = [task for running in self._running.values() for task in running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, handler: Handler, request: Request, body: Generation) -> None:
        try:
            await handler(request, body)
        except ConchError as error:
            log.warning("a shadow of %s failed: %s", request.state.chosen.experiment, error.message)
        except Exception:
            log.exception("a shadow of %s failed", request.state.chosen.experiment)
