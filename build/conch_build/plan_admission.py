"""The plan's `serving.gateway.queue`, `.limits` and `.tls`: what is let in, and how long it may take.

Knows nothing of engines: a bound that is left out comes from the engine's own limits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conch_build.plan_parts import INT32, Count, Part, Place
from conch_build.units import ByteSize, Duration

_Time = Annotated[Duration, Field(gt=0)]


class Queue(Part):
    """Of each model. Tokens are those of prompts and of what their answers may have."""

    running: Count | None = None
    """Answers in the engine at once. Default: its `max_batch_size` and an eighth more, so that it never lacks one."""
    running_tokens: Count | None = None
    """Tokens in the engine at once. Default: what its KV cache holds, where that is known."""
    waiting: Annotated[int, Field(ge=0, le=INT32, strict=True)] | None = None
    """Requests that may wait for a place; more are refused with 429. Default: the engine's `max_queue_size`."""
    waiting_tokens: Count | None = None
    """Tokens that may wait. Default: no bound of their own."""


class Limits(Part):
    request_timeout: _Time = 600.0
    """From a request's body to its last byte; `timeout` of a request may only shorten it."""
    drain_timeout: Annotated[Duration, Field(ge=0)] = 30.0
    """How long running answers may take to finish after SIGTERM."""
    head_bytes: Annotated[ByteSize, Field(ge=1024)] = 32 << 10
    """Of request line and headers together."""
    body_bytes: Annotated[ByteSize, Field(ge=1024)] = 8 << 20
    connections: Count = 4096
    head_timeout: _Time = 10.0
    """For request line and headers to come."""
    body_timeout: _Time = 30.0
    """For a body to come, and a second more for each 16 KiB of it."""
    idle_timeout: _Time = 60.0
    """How long a connection is kept between two requests."""
    write_timeout: _Time = 30.0
    """How long a client may take nothing of its answer; the engine's work for it then ends."""


class Tls(Part):
    certificate: Place | None = None
    """PEM file with the server's certificate, and those up to the authority's behind it."""
    key: Place | None = None
    """PEM file with its private key, not encrypted. None: it is in `certificate`."""

    @model_validator(mode="after")
    def _complete(self) -> Tls:
        if self.key is not None and self.certificate is None:
            raise ValueError("`key` needs a `certificate`")
        return self
