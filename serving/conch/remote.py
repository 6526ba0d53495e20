"""A server seen by the commands that speak to it: how its address is written, and what its refusals mean."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from conch_build.errors import (
    ConchError,
    InputError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServiceError,
    UnavailableError,
)

_ERRORS: dict[int, type[ConchError]] = {404: NotFoundError, 429: OverloadedError, 503: UnavailableError}


def gateway_url(url: str) -> str:
    """`http://host:port`, without a slash at its end. Raises InputError for anything else."""
    if not url.startswith(("http://", "https://")) or not _has_host(url):
        raise InputError("is not the address of a gateway", where=url, fix="Write it as http://127.0.0.1:8080.")
    return url.rstrip("/")


def grpc_url(url: str) -> str:
    """`host:port`. Raises InputError for anything else."""
    if "/" in url or not _has_host(f"//{url}", port=True):
        raise InputError("is not the address of a gRPC port", where=url, fix="Write it as 127.0.0.1:8001.")
    return url


def refusal(status: int, body: bytes, url: str) -> ConchError:
    """The error that a gateway's answer other than 200 stands for."""
    try:
        error = json.loads(body)["error"]
        message = str(error["message"])
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"HTTP status {status}, and no explanation", where=url)
    kind = _ERRORS.get(status, RequestError if status < 500 else ServiceError)
    if issubclass(kind, RequestError):
        return kind(message, param=error.get("param"), code=error.get("code"))
    return kind(message, where=url)


def _has_host(url: str, *, port: bool = False) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is not None or not port)
    except ValueError:  # a port that is no number, half an IPv6 address
        return False
