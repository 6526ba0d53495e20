"""The plan's `serving.gateway.models`: what the gateway serves beside the plan's own model, and where it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from conch_build.plan_parts import Part, Place

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):\d{1,5}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Upstream(Part):
    """A server that has the model: a Triton (`grpc`), or one that speaks OpenAI (`openai`)."""

    grpc: str | None = None
    """Triton's gRPC port, `host:port`."""
    metrics: str | None = None
    """Triton's metrics, `http://host:port/metrics`."""
    openai: str | None = None
    """Its base URL, as `http://host:8000/v1`: `trtllm-serve`, its disaggregated proxy, another gateway."""
    model: str | None = None
    """The model's name there; absent: the same."""
    key_env: str | None = None
    """The environment variable that holds the key for it."""

    @field_validator("grpc")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None and not _ADDRESS.fullmatch(value):
            raise ValueError(f"{value!r} is no host:port")
        return value

    @field_validator("openai", "metrics")
    @classmethod
    def _a_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/\s]+", value):
            raise ValueError(f"{value!r} is no http:// or https:// address")
        return value

    @field_validator("key_env")
    @classmethod
    def _a_variable(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError("it is no name of an environment variable; the key itself does not belong into a plan")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Upstream:
        if (self.grpc is None) == (self.openai is None):
            raise ValueError("a server has `grpc` or `openai`, and not both")
        if self.openai is None and (self.model or self.key_env):
            raise ValueError("`model` and `key_env` are for servers with `openai`")
        if self.grpc is None and self.metrics:
            raise ValueError("`metrics` is for servers with `grpc`")
        return self


class GatewayModel(Part):
    """Servers of one kind, all with the same engine."""

    servers: Annotated[list[Upstream], Field(min_length=1)]
    engine: Place | None = None
    """The engine's artifact, as `.conch/store/engine/NAME`: servers with `grpc` need it, as it has the tokenizer."""
    repository: Place | None = None
    """The repository that they serve, which names the adapters."""
    tool_format: str = "auto"

    @model_validator(mode="after")
    def _fits(self) -> GatewayModel:
        kinds = {server.openai is None for server in self.servers}
        if len(kinds) > 1:
            raise ValueError("servers with `grpc` and with `openai` cannot answer the same model")
        if kinds == {True} and self.engine is None:
            raise ValueError("servers with `grpc` need `engine`")
        if kinds == {False} and (self.engine or self.repository):
            raise ValueError("`engine` and `repository` are for servers with `grpc`")
        addresses = [server.grpc or server.openai for server in self.servers]
        if len(set(addresses)) < len(addresses):
            raise ValueError("a server is named twice")
        return self

    def anchored(self, here: Callable[[str], str]) -> GatewayModel:
        """Its places made absolute by `here`."""
        places = {"engine": self.engine and here(self.engine), "repository": self.repository and here(self.repository)}
        return self.model_copy(update=places)
