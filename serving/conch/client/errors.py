"""Failures of gRPC and of Triton, turned into Conch's error tree.

The models put a tag before their messages, `[RequestError param=top_p code=None] text`, from which the class
is rebuilt; Triton's own failures are told apart by their words. Knows nothing of tensors.
"""

from __future__ import annotations

import re

import grpc

from conch_build import errors
from conch_build.errors import (
    CancelledError,
    ConchError,
    DeadlineError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServiceError,
    UnavailableError,
)

_TAG = re.compile(r"\[(?P<name>\w+Error)(?: param=(?P<param>\S*))?(?: code=(?P<code>\S*?))?\] ?(?P<text>(?s:.*))")
_UNKNOWN_MODEL = re.compile(r"unknown model: '([^']+)'")
_NOBODY = ("failed to connect", "errors resolving", "DNS resolution failed")
"""How gRPC says at length what `no connection` says."""
_LOST = ("not healthy", "is not ready", "not ready for inference", "connection was terminated")


def from_message(message: str) -> ConchError:
    """The error that a response's `error_message` stands for."""
    tag = _TAG.search(message)
    kind = getattr(errors, tag["name"], None) if tag else None
    if tag and isinstance(kind, type) and issubclass(kind, ConchError) and kind is not errors.CheckError:
        text = tag["text"].strip()
        if issubclass(kind, RequestError):
            return kind(text, param=_value(tag["param"]), code=_value(tag["code"]))
        return kind(text)
    if unknown := _UNKNOWN_MODEL.search(message):
        return NotFoundError(f"Triton has no model `{unknown[1]}`", code="model_not_found")
    if any(words in message for words in _LOST):
        return UnavailableError(f"the model is down: {_one_line(message)}")
    return ServiceError(f"Triton failed: {_one_line(message)}")


def from_rpc(error: grpc.RpcError, url: str) -> ConchError:
    """The error that a failed call stands for."""
    code = error.code()
    details = _one_line(error.details() or code.name)
    if code is grpc.StatusCode.UNAVAILABLE:
        fix = "Is the server running, and is this its gRPC port?"
        reason = "" if details.startswith(_NOBODY) else f": {details}"
        return UnavailableError(f"no connection to Triton{reason}", where=url, fix=fix)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError("no complete answer within the timeout", where=url)
    if code is grpc.StatusCode.CANCELLED:
        return CancelledError("the call was cancelled", where=url)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OverloadedError(f"Triton refused the call: {details}", where=url)
    return ServiceError(f"the call failed: {details}", where=url)


def _value(text: str | None) -> str | None:
    return None if text in (None, "", "None", "-") else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
