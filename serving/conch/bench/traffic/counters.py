"""What a server's own /metrics count: tokens found in the prefix cache, tokens drafted and accepted.

In vLLM's vocabulary, which the gateway speaks, and in Triton's. A server without them is no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from collections.abc import Mapping

_NAMES = {
    "prompt_tokens": ("vllm:prefix_cache_queries_total", "conch_engine_prompt_tokens_total"),
    "hit_tokens": ("vllm:prefix_cache_hits_total", "conch_engine_prefix_hit_tokens_total"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "conch_engine_draft_tokens_total"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "conch_engine_accepted_tokens_total"),
}
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$", re.M)


def read_counters(text: str) -> dict[str, float]:
    """Sums over all labels, by our names; only those that are there."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        for ours, theirs in _NAMES.items():
            if name in theirs:
                sums[ours] = sums.get(ours, 0.0) + float(value)
    return sums


async def counters(url: str | None) -> dict[str, float]:
    """Those of `url`; none where it has none, or is None."""
    if url is None:
        return {}

    def ask() -> str:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode(errors="replace"))

    with contextlib.suppress(OSError, ValueError):
        return read_counters(await asyncio.to_thread(ask))
    return {}


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much each counter grew."""
    return {name: value - before[name] for name, value in after.items() if name in before}
