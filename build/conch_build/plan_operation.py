"""The plan's `serving.gateway.access_log` and `.tracing`: what is told of requests. Off unless asked for."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from conch_build.plan_parts import Part, Place


def _word(value: Any) -> Any:
    """YAML reads `off` as false."""
    return "off" if value is False else value


def _a_base_url(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{value!r} is no address of a collector, as `http://localhost:4318` is")
    return value


AccessLog = Annotated[
    Place, BeforeValidator(_word), WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"const": False}]})
]
"""`off`, `stdout`, or the path of a file."""


class Tracing(Part):
    endpoint: Annotated[str, AfterValidator(_a_base_url)] | None = None
    """Of a collector that takes OTLP over HTTP, without `/v1/traces`. Default: what OpenTelemetry's environment
    variables say; where they say nothing, there are no traces."""
    capture_content: bool = False
    """Put the text of prompts into the traces."""
