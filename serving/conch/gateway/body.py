"""From the bytes of a request to a validated model, with the errors that OpenAI's clients expect.

null means absent at every level where a field may be left out; NaN and Infinity are no JSON.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from conch.gateway.errors import MediaTypeError
from conch_build.errors import RequestError, UnsupportedError

_DEPTH = 64
_CONTAINERS = 32_768
"""Objects and lists of one body: validating takes microseconds for each, on the loop that all streams share."""
_OUT_OF_BOUNDS = {"greater_than", "greater_than_equal", "less_than_equal"}

log = logging.getLogger("conch.gateway")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Body = TypeVar("Body", bound=BaseModel)


async def read_body(
    request: Request, model: type[Body], undone: Mapping[str, tuple[Any, ...]], *, lenient: bool = False
) -> Body:
    """The request's JSON body as `model`. Raises RequestError for whatever is wrong with it.

    `undone`: parameters that the API has and this server has not, with the values that ask for nothing.
    `lenient`: those, and what no API has, are left out with a warning.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(f"content-type is {media_type or 'missing'}; it must be application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeError(f"content-encoding is {encoding}; the body must be sent as it is")
    return parse_body(await request.body(), model, undone, lenient=lenient)


def parse_body(raw: bytes, model: type[Body], undone: Mapping[str, tuple[Any, ...]], *, lenient: bool = False) -> Body:
    """`read_body` without the request around it."""
    try:
        data = json.loads(raw.decode(), parse_constant=_refuse_constant)
        if _SURROGATE.search(raw):
            json.dumps(data, ensure_ascii=False).encode()  # fails on half a pair, which is no text
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise RequestError(f"The body is not valid JSON: {reason}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise RequestError("The body must be a JSON object", code="invalid_json")
    if raw.count(b"[") + raw.count(b"{") > _DEPTH:  # else it cannot be too deep
        _check_shape(data)
    given = {name: value for name, value in data.items() if value is not None}
    if lenient:
        given = _known(given, model)
    for name, value in given.items():
        if name in undone and value not in undone[name]:
            raise UnsupportedError(
                f"Unsupported parameter: '{name}'{_only(undone[name])}",
                param=name,
                code="unsupported_parameter",
            )
    return validated({name: value for name, value in given.items() if name not in undone}, model)


def _check_shape(data: dict[str, Any]) -> None:
    """Level by level: what is nested too deeply must not be walked by recursion."""
    level: list[Any] = [data]
    containers = 0
    for _ in range(_DEPTH):
        containers += len(level)
        if containers > _CONTAINERS:
            raise RequestError(f"The body has more than {_CONTAINERS} objects and lists", code="too_many")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise RequestError(f"The body is nested more than {_DEPTH} levels deep", code="too_deep")


def validated(data: Mapping[str, Any], model: type[Body]) -> Body:
    """The data as `model`. Raises RequestError for the first thing that is wrong with it."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _described(error, model) from None


def _known(given: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    ignored = sorted(given.keys() - model.model_fields.keys())
    if ignored:
        log.warning("ignored: %s", ", ".join(ignored)[:200])
    return {name: value for name, value in given.items() if name not in ignored}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _only(values: tuple[Any, ...]) -> str:
    return f" (only {' or '.join(json.dumps(value) for value in values)} is possible)" if values else ""


def _described(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first problem, as one sentence that names the parameter."""
    problem = error.errors(include_url=False)[0]
    location = problem["loc"]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")[:200]
    if not location and (named := re.search("`([a-z_]+)`", problem["msg"])):
        # Of parameters that do not go together. What was given is the whole body: not shown.
        text = f"Invalid value for '{named[1]}': {problem['msg'].removeprefix('Value error, ')}"
        return RequestError(text, param=named[1], code="invalid_value")
    kind = problem["type"]
    if kind == "extra_forbidden":
        return RequestError(f"Unknown parameter: '{param}'", param=param, code="unknown_parameter")
    if kind == "missing":
        return RequestError(f"Missing required parameter: '{param}'", param=param, code="missing_required_parameter")
    wanted = "must not be empty" if kind == "too_short" else ""
    if len(location) == 1 and kind in _OUT_OF_BOUNDS:
        wanted = _range(model, str(location[0]))
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should be", "must be")
    shown = repr(problem["input"])
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    text = f"Invalid value for '{param}': {wanted or message} (given: {shown})"
    return RequestError(text, param=param, code="invalid_value")


def _range(model: type[BaseModel], name: str) -> str:
    """`must be at least 0 and at most 2`, for a field with bounds."""
    words = (("ge", "at least"), ("gt", "greater than"), ("le", "at most"))
    metadata = model.model_fields[name].metadata
    bounds = [f"{text} {getattr(item, key)}" for key, text in words for item in metadata if hasattr(item, key)]
    return f"must be {' and '.join(bounds)}" if bounds else ""
