"""What the gateway needs to know, gathered once at start. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conch.client.cpp_backend import CppBackend
from conch_build.adapter_registry import AdapterRegistry
from conch_build.files import home
from conch_build.manifest import TOKENIZER_DIR, GpuEngineManifest, engine_manifest
from conch_build.plan_gateway import Gateway

_GPU_CANDIDATES = {"tensorrt": 0, "pytorch": 20}
"""Log probabilities of a token: TensorRT-LLM's C++ backend gives that of the chosen one alone."""


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
class ModelSettings:
    """One model and the servers that have it, each the same engine.

    `tokenizer` is the artifact's; `end_ids`, `vocab_size`, `max_seq_len` and `top_candidates`
    are the engine manifest's.
    """

    name: str
    servers: tuple[Server, ...]
    tokenizer: Path
    max_seq_len: int
    vocab_size: int
    end_ids: tuple[int, ...]
    top_candidates: int
    """The largest number of log probabilities that the engine gives for a token."""
    adapters: Mapping[str, int] = field(default_factory=dict)
    """Names that requests may give as their model beside its own, with the ids that the engine knows them by."""
    adapter_slots: int = 0
    """How many of them are loaded at once."""
    cpp_backend: CppBackend | None = None
    """What stands in the place of Conch's own model in Triton, if anything."""
    tool_format: str = "auto"
    """How the model writes calls of tools: a name of `conch.gateway.calls.markup`; auto: its template says."""
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def for_engine(
        cls, artifact: Path, servers: Sequence[Server], repository: Path | None = None, *, tool_format: str = "auto"
    ) -> ModelSettings:
        """Settings for an engine artifact (`engine.json`, `tokenizer/`) and the adapters of a Triton repository.

        Raises StoreError.
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
            name=engine.name,
            servers=tuple(servers),
            tokenizer=artifact / TOKENIZER_DIR,
            max_seq_len=max_seq_len,
            vocab_size=engine.vocab_size,
            end_ids=tuple(engine.end_ids),
            top_candidates=top_candidates,
            adapters=adapters,
            adapter_slots=slots,
            cpp_backend=cpp_backend,
            tool_format=tool_format,
        )


@dataclass(frozen=True)
class GatewaySettings:
    """One gateway in front of the models that it names."""

    models: tuple[ModelSettings, ...]
    """The first one answers requests that name none."""
    plan: Gateway = field(default_factory=Gateway)
    """The plan's part: how requests are let in, routed, counted and told of."""
    home: Path = field(default_factory=lambda: home() / "gateway")
    """Where the gateway keeps what outlives it."""
    drain_seconds: float = 30.0
    """How long running answers may take to finish after SIGTERM."""
    body_bytes: int = 8 << 20
    stored_responses_bytes: int = 64 << 20
    """Of the conversations that /v1/responses keeps."""

    @property
    def lenient(self) -> bool:
        """Parameters that are not known are left out with a warning, not refused."""
        return self.plan.unknown_parameters == "warn"
