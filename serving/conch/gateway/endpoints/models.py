"""GET /v1/models and /v1/models/{name}; POST /v1/load_lora_adapter and /v1/unload_lora_adapter.

The models and their LoRA adapters. Which are there is the engine's to say; where their weights lie is in the
repository's registry, and no request can name a place.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, field_validator

from conch.gateway.body import read_body
from conch.gateway.context import Context
from conch.gateway.keys.authority import may_ask, needs
from conch.gateway.served import Served
from conch_build.errors import NotFoundError


class AdapterOrder(BaseModel):
    """The body of vLLM's endpoints, less what would let a request choose files."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    lora_name: str
    lora_path: str | None = None

    @field_validator("lora_path")
    @classmethod
    def _no_path(cls, path: str | None) -> None:
        raise ValueError("is not taken from a request: the plan says where an adapter lies")


class Models:
    def __init__(self, context: Context) -> None:
        self.context = context
        self._started = int(time.time())

    def router(self) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/v1/models", self.all, methods=["GET"], response_model=None)
        router.add_api_route("/v1/models/{name:path}", self.one, methods=["GET"], response_model=None)
        for path, order in (("/v1/load_lora_adapter", self.load), ("/v1/unload_lora_adapter", self.unload)):
            admin = [needs("adapters")]
            router.add_api_route(path, order, methods=["POST"], response_model=None, dependencies=admin)
        return router

    async def all(self, request: Request) -> dict[str, Any]:
        """The models that this gateway serves, and the adapters that requests may name: those that the key may ask."""
        return {"object": "list", "data": await self._cards(request)}

    async def one(self, request: Request, name: str) -> dict[str, Any]:
        """One of them by name."""
        for card in await self._cards(request):
            if card["id"] == name:
                return card
        raise _unknown(name, "model")

    async def load(self, request: Request) -> dict[str, Any]:
        """Read an adapter's weights, again if they were read before; new requests use what lies there now."""
        name, served = await self._order(request, "load")
        return self._card(served, name)

    async def unload(self, request: Request) -> dict[str, Any]:
        """Forget an adapter until it is loaded again; running answers end with it."""
        name, _ = await self._order(request, "unload")
        return {"id": name, "object": "model", "deleted": True}

    async def _order(self, request: Request, command: str) -> tuple[str, Served]:
        order = await read_body(request, AdapterOrder, {})
        for served in self.context.catalog:
            if order.lora_name in served.settings.adapters:
                await served.servers.adapters(command, served.settings.adapters[order.lora_name])
                served.changed()
                return order.lora_name, served
        raise _unknown(order.lora_name, "lora_name")

    async def _cards(self, request: Request) -> list[dict[str, Any]]:
        cards = [card for served in self.context.catalog for card in await self._cards_of(served)]
        for name, baseline in self.context.experiments.names().items():
            cards = [card for card in cards if card["id"] != name]
            cards.append(self._card(self.context.catalog.find(baseline), name))
        return [card for card in cards if may_ask(request, card["id"])]

    async def _cards_of(self, served: Served) -> list[dict[str, Any]]:
        adapters = await served.servers.adapters() if served.settings.adapters else []
        there = [adapter["name"] for adapter in adapters if adapter["state"] != "unloaded"]
        return [self._card(served, name) for name in (served.name, *there)]

    def _card(self, served: Served, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "conch",
            "parent": None if name == served.name else served.name,
            "max_model_len": served.settings.max_seq_len or None,
        }


def _unknown(name: str, param: str) -> NotFoundError:
    return NotFoundError(f"The model '{name}' does not exist", param=param, code="model_not_found")
