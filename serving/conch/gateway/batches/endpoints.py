"""POST and GET /v1/batches; GET /v1/batches/{id}; POST /v1/batches/{id}/cancel."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from conch.gateway.batches.files import ExpiresAfter
from conch.gateway.batches.lines import ENDPOINTS
from conch.gateway.batches.paging import Page, listed, page_of, parameters
from conch.gateway.batches.runner import BatchRunner
from conch.gateway.batches.store import Batch, BatchStore, of_row
from conch.gateway.body import read_body
from conch.gateway.exchange import owner_of
from conch.gateway.protocol.base import Metadata, Part
from conch_build.errors import RequestError
from conch_build.plan_batches import Batches
from conch_build.units import parse_seconds

_LONGEST_WINDOW_S = 7 * 24 * 3600.0


class BatchRequest(Part):
    input_file_id: str
    """A file that was uploaded with the purpose `batch`."""
    endpoint: str
    """Of all its lines: /v1/chat/completions, /v1/completions or /v1/responses."""
    completion_window: str
    """As `24h`; from a second to seven days."""
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchEndpoints:
    def __init__(self, store: BatchStore, runner: BatchRunner, plan: Batches, place: str) -> None:
        """`place`: of the callers' files."""
        self._store = store
        self._runner = runner
        self._plan = plan
        self._place = place

    def router(self) -> APIRouter:
        router = APIRouter()
        add = router.add_api_route
        add("/v1/batches", self.create, methods=["POST"], response_model=None)
        add("/v1/batches", self.all, methods=["GET"], response_model=None, openapi_extra=parameters(Page))
        add("/v1/batches/{batch_id}", self.retrieve, methods=["GET"], response_model=None)
        add("/v1/batches/{batch_id}/cancel", self.cancel, methods=["POST"], response_model=None)
        return router

    async def create(self, request: Request) -> dict[str, Any]:
        """Run the requests of a file, when nothing else needs the engine."""
        body = await read_body(request, BatchRequest, {})
        if body.endpoint not in ENDPOINTS:
            text = f"Invalid value for 'endpoint': must be one of {', '.join(ENDPOINTS)}"
            raise RequestError(text, param="endpoint", code="invalid_value")
        batch = Batch.new(
            _window(body.completion_window),
            owner=owner_of(request),
            place=self._place,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            metadata=body.metadata,
            output_seconds=body.output_expires_after and body.output_expires_after.seconds,
        )
        await self._store.add(batch, self._plan.unfinished)
        self._runner.wake()
        return batch.as_dict()

    async def all(self, request: Request) -> dict[str, Any]:
        """The caller's batches."""
        rows, more = await self._store.page(owner_of(request), page_of(request, Page))
        return listed(rows, more, lambda row: of_row(row).as_dict())

    async def retrieve(self, request: Request, batch_id: str) -> dict[str, Any]:
        """How far a batch is."""
        return (await self._store.get(batch_id, owner_of(request))).as_dict()

    async def cancel(self, request: Request, batch_id: str) -> dict[str, Any]:
        """Take no more of its lines; those that run are finished, and what is answered can be read."""
        batch = await self._store.cancel(batch_id, owner_of(request))
        self._runner.wake()
        return batch.as_dict()


def _window(text: str) -> float:
    """Raises RequestError."""
    try:
        seconds = parse_seconds(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _LONGEST_WINDOW_S:
        what = "Invalid value for 'completion_window': must be a time from 1s to 168h, as 24h"
        raise RequestError(what, param="completion_window", code="invalid_value")
    return seconds
