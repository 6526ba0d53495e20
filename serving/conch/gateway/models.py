"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from conch.gateway.settings import GatewaySettings
from conch_build.errors import NotFoundError


def router(settings: GatewaySettings) -> APIRouter:
    router = APIRouter()
    model = {
        "id": settings.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "conch",
        "max_model_len": settings.max_seq_len,
    }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model that this gateway serves."""
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """One model by name."""
        if name != settings.model_name:
            raise NotFoundError(f"The model '{name}' does not exist", param="model", code="model_not_found")
        return model

    return router
