"""The plan's `serving.gateway`: how the gateway stands before the engines. Knows nothing of engines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from conch_build.plan_admission import Limits, Queue, Tls
from conch_build.plan_batches import Batches
from conch_build.plan_experiments import Experiment
from conch_build.plan_models import GatewayModel
from conch_build.plan_operation import AccessLog, Tracing
from conch_build.plan_parts import Part, Port
from conch_build.plan_sharing import Cache, Redis


class Database(Part):
    """Keys, the ledger and all else that outlives the gateway."""

    url: str | None = None
    """`postgresql://USER@HOST/NAME`, for several gateways; its password: PGPASSWORD or ~/.pgpass. Default: a file."""

    @field_validator("url")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("postgresql://", "sqlite:///")):
            raise ValueError("it is neither postgresql://USER@HOST/NAME nor sqlite:///PATH")
        return url


class Gateway(Part):
    host: str = "127.0.0.1"
    port: Port = 8080
    """0 takes a free one."""
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral", "mistral_args"] = "auto"
    """How the model writes calls of tools; auto: its chat template says."""
    unknown_parameters: Literal["refuse", "warn"] = "refuse"
    """What becomes of request parameters that the gateway does not know."""
    queue: Queue = Queue()
    limits: Limits = Limits()
    tls: Tls = Tls()
    database: Database = Database()
    redis: Redis = Redis()
    cache: Cache = Cache()
    batches: Batches = Batches()
    access_log: AccessLog = "off"
    """A line of JSON a request: to `stdout`, or to a file, which may be rotated at any time."""
    tracing: Tracing = Tracing()
    models: dict[str, GatewayModel] = Field(default_factory=dict)
    """What is served beside the plan's own model, by the names that requests give."""
    experiments: dict[str, Experiment] = Field(default_factory=dict)
    """Names that requests may give as their model, and what answers them."""

    @model_validator(mode="after")
    def _cache_has_a_place(self) -> Gateway:
        if self.cache.ttl is not None and self.redis.url is None:
            raise ValueError("`cache` keeps answers in Redis: give `redis: {url: redis://HOST:PORT/0}` too")
        return self
