"""What the endpoints share: one object, made at start and handed to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from conch.gateway.exchange import Exchange, Observer
from conch.gateway.lifecycle import Lifecycle
from conch.gateway.metrics import Metrics
from conch.gateway.protocol import Generation
from conch.gateway.served import Catalog
from conch.gateway.settings import GatewaySettings


@dataclass
class Context:
    settings: GatewaySettings
    metrics: Metrics
    lifecycle: Lifecycle
    catalog: Catalog
    observers: Sequence[Observer] = ()
    """In the order in which they let calls in."""

    def begin(self, request: Request, endpoint: str, body: Generation) -> Exchange:
        """An exchange for what the body asks for. Raises NotFoundError for a model that is not there."""
        return Exchange(request, endpoint, body, self.catalog.find(body.model), self.observers)
