"""GET /v1/models and /v1/models/{name}; POST /v1/load_lora_adapter and /v1/unload_lora_adapter.

The model and its LoRA adapters. Which are there is the engine's to say; where their weights lie is in the repository's
registry, and no request can name a place.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, field_validator

from conch.gateway.body import read_body
from conch.gateway.context import Context
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
        router.add_api_route("/v1/load_lora_adapter", self.load, methods=["POST"], response_model=None)
        router.add_api_route("/v1/unload_lora_adapter", self.unload, methods=["POST"], response_model=None)
        return router

    async def all(self) -> dict[str, Any]:
        """The model that this gateway serves, and the adapters that requests may name."""
        return {"object": "list", "data": await self._cards()}

    async def one(self, name: str) -> dict[str, Any]:
        """One of them by name."""
        for card in await self._cards():
            if card["id"] == name:
                return card
        raise _unknown(name, "model")

    async def load(self, request: Request) -> dict[str, Any]:
        """Read an adapter's weights, again if they were read before; new requests use what lies there now."""
        name = await self._order(request, "load")
        return self._card(name)

    async def unload(self, request: Request) -> dict[str, Any]:
        """Forget an adapter until it is loaded again; running answers end with it."""
        name = await self._order(request, "unload")
        return {"id": name, "object": "model", "deleted": True}

    async def _order(self, request: Request, command: str) -> str:
        order = await read_body(request, AdapterOrder, {})
        number = self.context.settings.adapters.get(order.lora_name)
        if number is None:
            raise _unknown(order.lora_name, "lora_name")
        await self.context.upstream.adapters(command, number)
        return order.lora_name

    async def _cards(self) -> list[dict[str, Any]]:
        settings = self.context.settings
        adapters = await self.context.upstream.adapters() if settings.adapters else []
        there = [adapter["name"] for adapter in adapters if adapter["state"] != "unloaded"]
        return [self._card(settings.model_name), *(self._card(name) for name in there)]

    def _card(self, name: str) -> dict[str, Any]:
        settings = self.context.settings
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "conch",
            "parent": None if name == settings.model_name else settings.model_name,
            "max_model_len": settings.max_seq_len,
        }


def _unknown(name: str, param: str) -> NotFoundError:
    return NotFoundError(f"The model '{name}' does not exist", param=param, code="model_not_found")
