"""What the engine has done and holds, as others may see it. Knows nothing of metrics formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conch.engine.request import FINISH_REASONS, FinishReason


@dataclass(slots=True)
class Counters:
    """Totals since the start; only the engine's thread writes them."""

    requests: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    prompt_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class AdapterState:
    """What has become of a registered LoRA adapter."""

    name: str
    id: int
    state: Literal["loaded", "available", "unloaded"]
    """`available`: it is loaded when a request needs it."""
    running: int
    """Answers that use it, after an unload too."""
    waiting: int
    """Requests that wait for it."""


@dataclass(frozen=True)
class AdapterStats:
    """LoRA adapters, all together."""

    slots: int = 0
    used: int = 0
    """Slots that hold an adapter; after an unload also those that are still in use."""
    waiting: int = 0
    """Requests that wait for an adapter."""
    loads: int = 0
    evictions: int = 0


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
    draft_tokens_total: int
    """Tokens that speculation guessed."""
    accepted_tokens_total: int
    """Those of them that were right."""
    draft_seconds_total: float
    """Spent guessing; part of the seconds of the steps."""
    speculating: bool
    """Whether speculation is on now: it is off where it loses time."""
    preemptions_total: int
    steps_total: int
    step_seconds_total: float
    adapters: AdapterStats
    last_step_monotonic: float
    """`time.monotonic()` seconds."""
