"""What the models share: their parameters, and a request's tensors as plain arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch_build.errors import ConchError, RequestError

Arrays = Mapping[str, NDArray[Any]]


def parameters(args: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a model's config.pbtxt."""
    entries = json.loads(args["model_config"])["parameters"]
    return {key: entry["string_value"] for key, entry in entries.items()}


def output_names(args: Mapping[str, str]) -> list[str]:
    """The outputs that a model's config.pbtxt declares."""
    return [entry["name"] for entry in json.loads(args["model_config"])["output"]]


def arrays(request: Any) -> Arrays:
    """The input tensors by name; each has a leading batch dimension."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def strings(inputs: Arrays, name: str) -> list[str]:
    """The texts of a STRING tensor; none if it is absent. Raises RequestError if they are not UTF-8."""
    try:
        return [value.decode("utf-8") for value in inputs.get(name, np.empty(0, np.object_)).ravel()]
    except UnicodeDecodeError:
        raise RequestError(f"`{name}` is not UTF-8 text", param=name) from None


def tagged(error: ConchError) -> str:
    """The message with its class in front, from which a client rebuilds the error."""
    tags = [type(error).__name__]
    if isinstance(error, RequestError):
        tags += [f"{key}={value}" for key in ("param", "code") if (value := getattr(error, key))]
    return f"[{' '.join(tags)}] {error.message}"
