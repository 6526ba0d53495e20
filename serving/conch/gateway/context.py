"""What the endpoints share: one object, made at start and handed to each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from conch.gateway.ab.experiments import Experiments
from conch.gateway.exchange import Exchange, Observer
from conch.gateway.protocol import Generation
from conch.gateway.served import Catalog
from conch.gateway.settings import GatewaySettings
from conch.gateway.sharing.answers import Answers
from conch.gateway.transport.lifecycle import Lifecycle
from conch.gateway.watching.metrics import Metrics

Body = TypeVar("Body", bound=Generation)


@dataclass
class Context:
    settings: GatewaySettings
    metrics: Metrics
    lifecycle: Lifecycle
    catalog: Catalog
    experiments: Experiments
    answers: Answers
    observers: Sequence[Observer]
    """In the order in which they let exchanges in."""

    def begin(self, request: Request, endpoint: str, body: Body) -> tuple[Exchange, Body]:
        """An exchange for what the body asks for, and the body with the model that answers it.

        Raises NotFoundError for a model that is not there, ConchError when the caller may not ask it.
        """
        chosen = self.experiments.choose(request, body)
        if chosen is not None:
            body = body.model_copy(update={"model": chosen.model})
        served = self.catalog.find(body.model)
        exchange = Exchange(request, endpoint, body, served, self.observers, chosen)
        exchange.seconds = min(self.settings.plan.limits.request_timeout, body.timeout or math.inf)
        for observer in self.observers:
            observer.begun(exchange)
        return exchange, body
