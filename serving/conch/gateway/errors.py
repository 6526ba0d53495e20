"""Errors as OpenAI's API gives them: `{"error": {"message", "type", "param", "code"}}` and a status.

The one place where the error tree becomes HTTP. What failed below is logged, never shown: only errors that
speak of the request itself carry their own words to the client.
"""

from __future__ import annotations

import logging
import math
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
_LONGEST_RETRY_S = 60.0
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


class TooLarge(RequestError):
    """The body, or a file in it, is larger than is taken."""

    http_status = 413


class Told(ConchError):
    """A refusal of the gateway's own: its words are for the client, and so are its `headers`."""

    def __init__(self, what: str, *, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(what)
        self.code = code
        self.headers = headers or {}


class Draining(Told, UnavailableError):
    """The gateway is shutting down: the request should go to another one."""

    def __init__(self) -> None:
        super().__init__("The gateway is shutting down; send the request to another one.", code="shutting_down")


class QueueFull(Told, OverloadedError):
    """Too much waits already; in `seconds`, where that can be told, there will be room."""

    def __init__(self, seconds: float | None = None) -> None:
        words = "Too many requests wait for this model; try again later."
        super().__init__(words, code="overloaded", headers=_retry_after(seconds))


class TooLate(Told, UnavailableError):
    """It would be over its time before it began: better said at once."""

    def __init__(self, seconds: float) -> None:
        words = f"The request would wait about {math.ceil(seconds)} s, longer than its time; try again later."
        super().__init__(words, code="deadline_unreachable", headers=_retry_after(seconds))


class KeyRefused(Told):
    """No API key, or none that is known."""

    http_status = 401

    def __init__(self, what: str, *, code: str = "invalid_api_key") -> None:
        super().__init__(what, code=code, headers={"www-authenticate": 'Bearer realm="conch"'})


class NotAllowed(Told):
    """The API key does not open this."""

    http_status = 403


class RateLimited(Told, OverloadedError):
    """The API key is over a limit; None: the request can never be within it."""

    def __init__(self, what: str, seconds: float | None) -> None:
        headers = {"x-should-retry": "false"} if seconds is None else _retry_after(seconds)
        super().__init__(what, code="rate_limit_exceeded", headers=headers)


class StorageFull(Told, UnavailableError):
    """The disk that holds callers' files is full."""

    def __init__(self) -> None:
        super().__init__("The gateway has no room for files now; try again later.", code="storage_full")


class TooManyBatches(Told, OverloadedError):
    """The key has as many batches that have not ended as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"You have {most} unfinished batches, which is the most.", code="too_many_batches")


class OverDeadline(Told, DeadlineError):
    """The request's own time, or the most that the gateway gives to one, is over."""

    def __init__(self) -> None:
        super().__init__("The request was not done within its time.", code="timeout")


def payload(message: str, *, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: ConchError) -> dict[str, Any]:
    """What the client may read of an error."""
    if isinstance(error, RequestError):
        return payload(error.message, status=error.http_status, param=error.param, code=error.code)
    if isinstance(error, Told):
        return payload(error.message, status=error.http_status, code=error.code)
    log.warning("%s: %s", type(error).__name__, error.message)
    message, code = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), _ANY_FAILURE)
    return payload(message, status=error.http_status, code=code)


def kind_of(error: ConchError) -> str:
    """A word for what went wrong, of few: for figures and logs."""
    if isinstance(error, RequestError):
        return "not_found" if error.http_status == 404 else "invalid_request"
    if isinstance(error, Told):
        return error.code
    return next((code for kind, (_, code) in _WORDS.items() if isinstance(error, kind)), _ANY_FAILURE[1])


def _retry_after(seconds: float | None) -> dict[str, str]:
    """Whole seconds for everybody, milliseconds for OpenAI's SDKs."""
    if seconds is None:
        return {}
    seconds = min(max(seconds, 0.1), _LONGEST_RETRY_S)
    return {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(round(1000 * seconds))}


def headers_of(status: int, error: ConchError | None = None) -> dict[str, str]:
    """What goes beside an error with that status; what the error itself says of it wins."""
    own = error.headers if isinstance(error, Told) else {}
    return {**({"retry-after": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}), **own}


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


def answer_to(error: ConchError, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response that an error becomes."""
    status = error.http_status
    return JSONResponse(body_of(error), status, {**headers_of(status, error), **(headers or {})})


def internal_error(error: Exception, request_id: str) -> JSONResponse:
    """The answer to a fault of our own: the log has the details, under the request's id."""
    log.error("request %s failed", request_id, exc_info=error)
    return response(500, f"Something failed inside the gateway (request {request_id})", code="internal_error")


def install(app: FastAPI) -> None:
    """Give every error that the app raises the one shape."""

    @app.exception_handler(ConchError)
    async def conch_error(request: Request, error: ConchError) -> JSONResponse:
        return answer_to(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return response(404, f"No such URL: {request.method} {request.scope['path']}", code="unknown_url")
        code = "method_not_allowed" if error.status_code == 405 else None
        return response(error.status_code, str(error.detail), code=code, headers=error.headers)
