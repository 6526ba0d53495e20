"""What the engine has done and holds, as others may see it. Knows nothing of metrics formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conch.engine.request import FINISH_REASONS, FinishReason


@dataclass(slots=True)
class Counters:
    """Totals since the start; only the engine's thread writes them."""

    requests: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class EngineStats:
    """A moment of the engine."""

    running: int
    waiting: int
    prefilling: int
    """Those of `running` whose prompt is not computed yet."""
    max_batch_size: int
    kv_blocks_total: int
    kv_blocks_used: int
    """Held by live requests."""
    kv_blocks_cached: int
    """Held by nobody, with content that can be reused."""
    tokens_per_block: int
    requests_total: Mapping[FinishReason, int]
    """Finished requests, each counted once."""
    prompt_tokens_total: int
    """Of finished requests."""
    generated_tokens_total: int
    prefix_hit_tokens_total: int
    """Prompt tokens that needed no computing."""
    preemptions_total: int
    steps_total: int
    step_seconds_total: float
    last_step_monotonic: float
    """`time.monotonic()` seconds."""
