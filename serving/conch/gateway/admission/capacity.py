"""What one engine can hold, from its manifest. Knows nothing of requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conch_build.manifest import DRAFT_DIR, EngineManifest, GpuEngineManifest


@dataclass(frozen=True)
class Capacity:
    batch: int = 64
    """Answers that are made at once."""
    queue: int = 1024
    """Requests that may wait in the engine."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None: known only once it is loaded."""

    @classmethod
    def of(cls, artifact: Path, engine: EngineManifest | GpuEngineManifest) -> Capacity:
        """Raises StoreError when the draft model's manifest does not read."""
        if isinstance(engine, GpuEngineManifest):
            return cls(engine.limits.max_batch_size, engine.limits.max_queue_size)
        if engine.kv_cache.free_memory_fraction is not None:
            return cls(engine.max_batch_size, engine.max_queue_size)
        draft = EngineManifest.load(artifact / DRAFT_DIR) if engine.speculation.method == "draft" else None
        kv_tokens = engine.num_blocks(0, draft) * engine.kv_cache.tokens_per_block
        return cls(engine.max_batch_size, engine.max_queue_size, kv_tokens)
