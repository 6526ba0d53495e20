"""POST and GET /v1/files; GET and DELETE /v1/files/{id}; GET /v1/files/{id}/content."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field

from conch.gateway.batches.file_store import File, FileStore, new_file_id
from conch.gateway.batches.paging import Page, listed, page_of, parameters
from conch.gateway.batches.upload import save_form
from conch.gateway.body import validated
from conch.gateway.errors import TooLarge
from conch.gateway.exchange import owner_of
from conch.gateway.protocol.base import Part
from conch_build.errors import NotFoundError
from conch_build.plan_batches import MOST_SECONDS, Batches

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"const": "batch"},
                        "expires_after[anchor]": {"const": "created_at"},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": int(MOST_SECONDS)},
                    },
                }
            }
        },
    }
}


class FilePage(Page):
    limit: int = Field(10_000, ge=1, le=10_000)
    purpose: str | None = None


class ExpiresAfter(Part):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=int(MOST_SECONDS), strict=False)


class _Fields(Part):
    """A form beside its file."""

    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None


class Files:
    def __init__(self, store: FileStore, plan: Batches) -> None:
        self._store = store
        self._plan = plan

    def router(self) -> APIRouter:
        router = APIRouter()
        add = router.add_api_route
        add("/v1/files", self.create, methods=["POST"], response_model=None, openapi_extra=_FORM)
        add("/v1/files", self.all, methods=["GET"], response_model=None, openapi_extra=parameters(FilePage))
        add("/v1/files/{file_id}", self.retrieve, methods=["GET"], response_model=None)
        add("/v1/files/{file_id}", self.delete, methods=["DELETE"], response_model=None)
        add("/v1/files/{file_id}/content", self.content, methods=["GET"], response_model=None)
        return router

    async def create(self, request: Request) -> dict[str, Any]:
        """Keep a file of requests, for a batch."""
        owner, file_id = owner_of(request), new_file_id()
        left = self._plan.stored_bytes - await self._store.stored_bytes(owner)
        if left <= 0:
            text = f"Your files have {self._plan.stored_bytes} bytes together, which is the most; delete some."
            raise TooLarge(text, param="file", code="storage_limit")
        path = self._store.path(file_id)
        form = await save_form(request, path, min(self._plan.file_bytes, left))
        try:
            fields = validated(_nested(form.fields), _Fields)
            now = time.time()
            expires_at = now + (fields.expires_after.seconds if fields.expires_after else self._plan.expiry)
            file = File(file_id, owner, form.filename, form.bytes, fields.purpose, now, expires_at)
            await self._store.add(file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file.as_dict()

    async def all(self, request: Request) -> dict[str, Any]:
        """The caller's files."""
        page = page_of(request, FilePage)
        rows, more = await self._store.page(owner_of(request), page, page.purpose)
        return listed(rows, more, lambda row: File(**row._mapping).as_dict())

    async def retrieve(self, request: Request, file_id: str) -> dict[str, Any]:
        """What is known of a file."""
        return (await self._store.get(file_id, owner_of(request))).as_dict()

    async def delete(self, request: Request, file_id: str) -> dict[str, Any]:
        """Forget a file that no batch needs any more."""
        await self._store.remove(file_id, owner_of(request))
        return {"id": file_id, "object": "file", "deleted": True}

    async def content(self, request: Request, file_id: str) -> Response:
        """A file's bytes."""
        file = await self._store.get(file_id, owner_of(request))
        path = self._store.path(file.id)
        if not path.is_file():
            raise NotFoundError(f"The bytes of '{file.id}' are gone", param="file_id", code="file_not_found")
        # As an attachment, and of no type that a browser would run.
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "x-content-type-options": "nosniff",
        }
        return FileResponse(path, media_type="application/octet-stream", headers=headers)


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """`expires_after[seconds]` as a form has it is `seconds` of `expires_after`."""
    nested: dict[str, Any] = {}
    for name, value in fields.items():
        outer, bracket, inner = name.removesuffix("]").partition("[")
        if bracket and isinstance(nested.setdefault(outer, {}), dict):
            nested[outer][inner] = value
        else:
            nested[outer] = value
    return nested
