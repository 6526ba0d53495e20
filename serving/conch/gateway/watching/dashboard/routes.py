"""GET /dashboard and /dashboard/data.

The page is the same for everybody and holds no figures, so it needs no key; its data do. A browser sends a key only
when the page asks its reader for one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.params import Depends
from fastapi.responses import HTMLResponse, JSONResponse

from conch.gateway.context import Context
from conch.gateway.watching.dashboard.data import document
from conch.gateway.watching.dashboard.recorder import Recorder
from conch.gateway.watching.metrics.engine import read_engines
from conch.gateway.watching.metrics.exposition import engines_of
from conch.gateway.watching.metrics.machine import Gpus

_INLINE = re.compile(r"<(?P<kind>script|style)>(?P<text>.*?)</(?P=kind)>", re.S)
_QUIET = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def router(
    context: Context, http: httpx.AsyncClient, recorder: Recorder, gpus: Gpus, dependencies: Sequence[Depends] = ()
) -> APIRouter:
    """`dependencies`: who may read the data."""
    router = APIRouter(include_in_schema=False)
    page = files("conch.gateway.watching.dashboard").joinpath("page.html").read_text(encoding="utf-8")
    headers = {**_QUIET, **headers_for(page)}

    @router.get("/dashboard")
    async def dashboard() -> Response:
        return HTMLResponse(page, headers=headers)

    @router.get("/dashboard/data", dependencies=list(dependencies))
    async def data(request: Request) -> Response:
        readings = await read_engines(http, engines_of(context.catalog))
        recent, present = recorder.recent(), recorder.present()
        shown = await asyncio.to_thread(
            lambda: document(
                recorder,
                recent,
                present,
                [served.name for served in context.catalog],
                readings,
                gpus.read(),
                state="draining" if context.lifecycle.draining else "serving",
                since=_number(request.query_params.get("since")),
            )
        )
        return JSONResponse(shown, headers=_QUIET)

    return router


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def headers_for(page: str) -> dict[str, str]:
    """Nothing is run or loaded but what is in the page itself, and nobody may frame it."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for inline in _INLINE.finditer(page):
        digest = base64.b64encode(hashlib.sha256(inline["text"].encode()).digest()).decode()
        hashes[inline["kind"]].append(f"'sha256-{digest}'")
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(hashes["script"]),
        "style-src": " ".join(hashes["style"]),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }
