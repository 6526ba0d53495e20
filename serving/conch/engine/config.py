"""The engine's limits, taken once from the artifact. Knows no file format and no kernel library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conch_build.manifest import EngineManifest


@dataclass(frozen=True)
class EngineConfig:
    """What the engine promises to hold to. Lengths are in tokens."""

    max_batch_size: int = 64
    max_num_tokens: int = 2048
    """Tokens of one step, prompts and decoding together."""
    max_seq_len: int = 4096
    """Tokens of one request, prompt and answer together."""
    max_queue_size: int = 1024
    """Requests that may wait beside those that a full batch holds."""
    chunked_prefill: bool = True
    reuse: bool = True
    """Share the KV blocks of equal prefixes."""
    end_ids: frozenset[int] = frozenset()

    @classmethod
    def from_manifest(cls, manifest: EngineManifest) -> EngineConfig:
        return cls(
            max_batch_size=manifest.max_batch_size,
            max_num_tokens=manifest.max_num_tokens,
            max_seq_len=manifest.max_seq_len,
            max_queue_size=manifest.max_queue_size,
            chunked_prefill=manifest.chunked_prefill,
            reuse=manifest.kv_cache.reuse,
            end_ids=frozenset(manifest.end_ids),
        )

    @property
    def batch_size(self) -> int:
        """Sequences that can decode together: each needs one token of a step."""
        return min(self.max_batch_size, self.max_num_tokens)

    @property
    def max_prompt_len(self) -> int:
        """The longest prompt. Without chunking it must fit in one step beside a full batch that decodes."""
        if self.chunked_prefill:
            return self.max_seq_len - 1
        return min(self.max_seq_len - 1, self.max_num_tokens - self.batch_size + 1)
