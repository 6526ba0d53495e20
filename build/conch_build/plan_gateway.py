"""The plan's `serving.gateway`: how the gateway stands before the engines. Knows nothing of engines."""

from __future__ import annotations

from typing import Literal

from conch_build.plan_parts import Part, Port


class Gateway(Part):
    host: str = "127.0.0.1"
    port: Port = 8080
    """0 takes a free one."""
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral", "mistral_args"] = "auto"
    """How the model writes calls of tools; auto: its chat template says."""
    unknown_parameters: Literal["refuse", "warn"] = "refuse"
    """What becomes of request parameters that the gateway does not know."""
