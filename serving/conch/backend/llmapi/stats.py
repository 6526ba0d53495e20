"""The engine's statistics from what this side counts and what the LLM API tells of its last step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conch.engine.stats import AdapterStats, Counters, EngineStats


def engine_stats(
    live: int,
    counters: Counters,
    step: Mapping[str, Any],
    *,
    max_batch_size: int,
    tokens_per_block: int,
    prefix_hit_tokens: int,
    speculating: bool,
    adapters: AdapterStats,
    last_step: float,
) -> EngineStats:
    """`live`: answers that run or wait; `step`: the last record of `get_stats`, empty before the first."""
    cache, batch = step.get("kvCacheStats") or {}, step.get("inflightBatchingStats") or {}
    waiting = min(live, int(step.get("numQueuedRequests", 0)) + int(batch.get("numPausedRequests", 0)))
    return EngineStats(
        running=live - waiting,
        waiting=waiting,
        prefilling=min(live - waiting, int(batch.get("numContextRequests", 0))),
        max_batch_size=max_batch_size,
        kv_blocks_total=int(cache.get("maxNumBlocks", 0)),
        kv_blocks_used=int(cache.get("usedNumBlocks", 0)),
        kv_blocks_cached=0,
        tokens_per_block=int(cache.get("tokensPerBlock", tokens_per_block)),
        requests_total=dict(counters.requests),
        prompt_tokens_total=counters.prompt_tokens,
        generated_tokens_total=counters.generated_tokens,
        prefix_hit_tokens_total=prefix_hit_tokens,
        draft_tokens_total=counters.draft_tokens,
        accepted_tokens_total=counters.accepted_tokens,
        draft_seconds_total=0.0,
        speculating=speculating,
        preemptions_total=0,
        steps_total=int(step.get("iter", counters.steps)),
        step_seconds_total=counters.step_seconds,
        adapters=adapters,
        last_step_monotonic=last_step,
    )
