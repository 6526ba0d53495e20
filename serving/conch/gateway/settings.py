"""What the gateway needs to know, gathered once at start. Knows nothing of HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.client.cpp_backend import CppBackend
from conch.gateway.admission.capacity import Capacity
from conch_build.adapter_registry import AdapterRegistry
from conch_build.cost import Price
from conch_build.errors import PlanError, SetupError
from conch_build.files import home
from conch_build.manifest import TOKENIZER_DIR, GpuEngineManifest, engine_manifest
from conch_build.plan_gateway import Gateway
from conch_build.plan_models import GatewayModel, Upstream

if TYPE_CHECKING:
    from conch.gateway.served import Catalog

_GPU_CANDIDATES = {"tensorrt": 0, "pytorch": 20}
"""Log probabilities of a token: TensorRT-LLM's C++ backend gives that of the chosen one alone."""


def gateway_home() -> Path:
    """Where a gateway keeps what outlives it, unless it is told another place."""
    return home() / "gateway"


@dataclass(frozen=True)
class Limits:
    """Ceilings of one request, checked before any work is fanned out."""

    messages: int = 2048
    prompts: int = 64
    """Prompts of one completions request."""
    stops: int = 16
    stop_chars: int = 512
    stop_token_ids: int = 64
    bias_entries: int = 1024
    bad_words: int = 64
    choices: int = 128
    """Answers of one request: prompts times `n` or `best_of`."""
    tools: int = 128
    schema_bytes: int = 1 << 17
    """Of a schema, a grammar or all tools together."""
    pattern_chars: int = 8192
    """Of a regular expression, also within a schema."""
    inline_chars: int = 8192
    """Longer texts are tokenized in a thread, so that the event loop keeps its pace."""


@dataclass(frozen=True)
class Server:
    """A Triton that serves a model."""

    grpc_url: str
    """Its gRPC port, `host:port`."""
    metrics_url: str | None = None
    """Its metrics, `http://host:port/metrics`; without it the engine's gauges are left out."""


@dataclass(frozen=True)
class OpenAIServer:
    """A server that speaks OpenAI's API."""

    url: str
    """Its base, as `http://host:8000/v1`."""
    model: str
    """The model's name there."""
    key: str | None = field(default=None, repr=False)
    metrics_url = None


@dataclass(frozen=True)
class ModelSettings:
    """One model and the servers that have it, each the same engine, all of one kind.

    `tokenizer` is the artifact's; `end_ids`, `vocab_size`, `max_seq_len` and `top_candidates`
    are the engine manifest's.
    """

    name: str
    servers: tuple[Server | OpenAIServer, ...]
    tokenizer: Path | None
    """None: the servers tokenize."""
    max_seq_len: int
    vocab_size: int
    end_ids: tuple[int, ...]
    top_candidates: int
    """The largest number of log probabilities that the engine gives for a token."""
    adapters: Mapping[str, int] = field(default_factory=dict)
    """Names that requests may give as their model beside its own, with the ids that the engine knows them by."""
    adapter_slots: int = 0
    """How many of them are loaded at once."""
    capacity: Capacity = field(default_factory=Capacity)
    """Of each server."""
    context_servers: tuple[Server, ...] = ()
    """Those that read prompts for the others, if prompts and answers have engines of their own."""
    max_local_prefill_length: int = 0
    """Prompts up to so many tokens are read where their answers are written."""
    cpp_backend: CppBackend | None = None
    """What stands in the place of Conch's own model in Triton, if anything."""
    tool_format: str = "auto"
    """How the model writes calls of tools: a name of `conch.gateway.calls.markup`; auto: its template says."""
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def for_engine(
        cls,
        artifact: Path,
        servers: Sequence[Server],
        repository: Path | None = None,
        *,
        name: str | None = None,
        tool_format: str = "auto",
    ) -> ModelSettings:
        """Settings for an engine artifact (`engine.json`, `tokenizer/`) and the adapters of a Triton repository.

        `name`: instead of the engine's. Raises StoreError.
        """
        engine = engine_manifest(artifact)
        registry = AdapterRegistry.load(repository / "tensorrt_llm") if repository else None
        adapters = {adapter.name: adapter.id for adapter in registry.adapters} if registry else {}
        slots = registry.slots if registry else 0
        cpp_backend = None
        if isinstance(engine, GpuEngineManifest):
            max_seq_len, top_candidates = engine.limits.max_seq_len, _GPU_CANDIDATES[engine.backend]
            if engine.backend == "tensorrt":
                block = engine.kv_cache.tokens_per_block
                cpp_backend = CppBackend(tuple(engine.end_ids), engine.vocab_size, block)
            if engine.backend == "tensorrt" and engine.lora:  # its engine has them in it
                adapters = {adapter.name: adapter.id for adapter in engine.lora.adapters}
                slots = len(adapters)
        else:
            max_seq_len, top_candidates = engine.max_seq_len, engine.top_candidates
        return cls(
            name=name or engine.name,
            servers=tuple(servers),
            tokenizer=artifact / TOKENIZER_DIR,
            max_seq_len=max_seq_len,
            vocab_size=engine.vocab_size,
            end_ids=tuple(engine.end_ids),
            top_candidates=top_candidates,
            adapters=adapters,
            adapter_slots=slots,
            capacity=Capacity.of(artifact, engine),
            cpp_backend=cpp_backend,
            tool_format=tool_format,
        )

    @classmethod
    def of(cls, name: str, plan: GatewayModel) -> ModelSettings:
        """A model that the plan names beside its own. Raises StoreError, SetupError."""
        if plan.engine is not None:
            servers = [Server(server.grpc or "", server.metrics) for server in plan.servers]
            repository = Path(plan.repository) if plan.repository else None
            return cls.for_engine(Path(plan.engine), servers, repository, name=name, tool_format=plan.tool_format)
        relayed = tuple(_openai_server(name, server) for server in plan.servers)
        return cls(name, relayed, None, max_seq_len=0, vocab_size=0, end_ids=(), top_candidates=0)


def other_models(plan: Gateway, own: str | None = None) -> tuple[ModelSettings, ...]:
    """Those of `serving.gateway.models`, beside the plan's `own`. Raises PlanError, StoreError, SetupError."""
    if own in plan.models:
        where, fix = f"serving.gateway.models.{own}", "Give it another name."
        raise PlanError(f"the plan itself is called {own!r}", where=where, fix=fix)
    return tuple(ModelSettings.of(name, model) for name, model in plan.models.items())


def _openai_server(name: str, plan: Upstream) -> OpenAIServer:
    key = os.environ.get(plan.key_env) if plan.key_env else None
    if plan.key_env and not key:
        where = f"serving.gateway.models.{name}"
        raise SetupError(f"the environment variable {plan.key_env} is not set", where=where, fix="Put the key there.")
    return OpenAIServer((plan.openai or "").rstrip("/"), plan.model or name, key)


Membership = Callable[["Catalog"], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class GatewaySettings:
    """One gateway in front of the models that it names."""

    models: tuple[ModelSettings, ...]
    """The first one answers requests that name none."""
    plan: Gateway = field(default_factory=Gateway)
    """The plan's part: how requests are let in, routed, counted and told of."""
    home: Path = field(default_factory=lambda: gateway_home())
    """Where the gateway keeps what outlives it."""
    published_on: str | None = None
    """The address at which others reach a port that is forwarded here; None: the one bound to."""
    hourly_usd: float | None = None
    """What each server's machines cost."""
    require_key: bool = False
    """Who has no key is sent away, also before there is one."""
    membership: Membership | None = None
    """What lets servers join and leave their models' pools, beside the gateway for as long as it runs."""
    stored_responses_bytes: int = 64 << 20
    """Of the conversations that /v1/responses keeps."""

    @property
    def price(self) -> Price | None:
        """Of a server's time, where the plan tells one."""
        return None if self.hourly_usd is None else Price(self.hourly_usd)

    @property
    def lenient(self) -> bool:
        """Parameters that are not known are left out with a warning, not refused."""
        return self.plan.unknown_parameters == "warn"
