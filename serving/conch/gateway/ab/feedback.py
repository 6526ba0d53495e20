"""POST /v1/feedback: what a caller thinks of an answer, as a figure of the variant that gave it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from conch.gateway.ab.experiments import Experiments
from conch.gateway.body import read_body
from conch.gateway.exchange import owner_of
from conch.gateway.protocol.base import Part
from conch_build.errors import NotFoundError, RequestError


class FeedbackRequest(Part):
    id: str = Field(max_length=128)
    """The answer's own, as `chatcmpl-...`."""
    score: float = Field(ge=0, le=1)
    """0: useless; 1: perfect."""


def router(experiments: Experiments) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/feedback", response_model=None)
    async def create(request: Request) -> dict[str, Any]:
        """Score an answer of an experiment, once."""
        body = await read_body(request, FeedbackRequest, {})
        found = await experiments.feedback(body.id, owner_of(request), body.score)
        if found is None:
            text = f"No answer '{body.id}' of an experiment is known"
            raise NotFoundError(text, param="id", code="answer_not_found")
        experiment, variant, before = found
        if before is not None:
            text = f"The answer '{body.id}' has its score already: {before:g}"
            raise RequestError(text, param="id", code="already_scored")
        return {"id": body.id, "object": "feedback", "model": experiment, "variant": variant, "score": body.score}

    return router
