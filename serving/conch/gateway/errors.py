"""Errors as OpenAI's API gives them: `{"error": {"message", "type", "param", "code"}}` and a status.

The one place where the error tree becomes HTTP. What failed below is logged, never shown: only errors that
speak of the request itself carry their own words to the client.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from conch_build.errors import (
    CancelledError,
    ConchError,
    DeadlineError,
    OverloadedError,
    RequestError,
    UnavailableError,
)

log = logging.getLogger("conch.gateway")

_TYPES = {
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}
_RETRY_AFTER = {429: "1", 503: "2"}
_WORDS: dict[type[ConchError], tuple[str, str]] = {
    OverloadedError: ("The engine's queue is full; try again later.", "overloaded"),
    UnavailableError: ("The model is not ready; try again later.", "unavailable"),
    DeadlineError: ("The engine did not answer in time.", "timeout"),
    CancelledError: ("The request was cancelled.", "cancelled"),
}
_ANY_FAILURE = ("The engine failed while it worked on this request.", "engine_error")


class MediaTypeError(RequestError):
    """The body is of a type that is not read."""

    http_status = 415


class Draining(UnavailableError):
    """The gateway is shutting down: the request should go to another one."""


def payload(message: str, *, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: ConchError) -> dict[str, Any]:
    """What the client may read of an error."""
    if isinstance(error, RequestError):
        return payload(error.message, status=error.http_status, param=error.param, code=error.code)
    if isinstance(error, Draining):
        return payload(error.message, status=error.http_status, code="shutting_down")
    log.warning("%s: %s", type(error).__name__, error.message)
    message, code = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), _ANY_FAILURE)
    return payload(message, status=error.http_status, code=code)


def headers_of(status: int) -> dict[str, str]:
    return {"retry-after": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}


def response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error made by the gateway itself."""
    content = payload(message, status=status, param=param, code=code)
    return JSONResponse(content, status, {**headers_of(status), **(headers or {})})


def internal_error(error: Exception, request_id: str) -> JSONResponse:
    """The answer to a fault of our own: the log has the details, under the request's id."""
    log.error("request %s failed", request_id, exc_info=error)
    return response(500, f"Something failed inside the gateway (request {request_id})", code="internal_error")


def install(app: FastAPI) -> None:
    """Give every error that the app raises the one shape."""

    @app.exception_handler(ConchError)
    async def conch_error(request: Request, error: ConchError) -> JSONResponse:
        return JSONResponse(body_of(error), error.http_status, headers_of(error.http_status))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return response(404, f"No such URL: {request.method} {request.scope['path']}", code="unknown_url")
        code = "method_not_allowed" if error.status_code == 405 else None
        return response(error.status_code, str(error.detail), code=code, headers=error.headers)
