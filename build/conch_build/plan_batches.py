"""The plan's `serving.gateway.batches`: how much callers may leave behind, and how much of it is worked on at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conch_build.plan_parts import Count, Part
from conch_build.units import ByteSize, Duration

MOST_SECONDS = 30 * 24 * 3600.0
"""The longest that OpenAI's API lets a file be kept for."""


class Batches(Part):
    file_bytes: Annotated[ByteSize, Field(ge=1024)] = 200 << 20
    """Of one uploaded file."""
    stored_bytes: Annotated[ByteSize, Field(ge=1024)] = 10 << 30
    """Of all files of a key, those that its batches wrote among them."""
    expiry: Annotated[Duration, Field(ge=60, le=MOST_SECONDS)] = MOST_SECONDS
    """How long files are kept whose callers do not say; `720h` at most."""
    lines: Count = 50_000
    """Requests of one batch."""
    unfinished: Count = 100
    """Batches of a key that have not ended."""
    running: Count | None = None
    """Lines that run at once, of all batches together. Default: half of what the engines take in a batch."""
