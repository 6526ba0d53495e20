"""What goes into a generation and what comes out of it. Knows nothing of gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from conch_build.errors import RequestError

T = TypeVar("T")

TopLogProbs = tuple[tuple[tuple[int, float], ...], ...]
"""For each new token, the best candidates as (id, log probability), best first."""


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. What is None is not sent: the engine's default holds."""

    max_tokens: int = 128
    temperature: float | None = None
    """0 is greedy."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    """0 to 2**64 - 1."""
    min_tokens: int | None = None
    end_ids: Sequence[int] | None = None
    """Ids that end the answer; None: the model's own, empty: none."""
    stop_words: Sequence[Sequence[int]] | Sequence[str] = ()
    """Token sequences with a prompt of ids, texts with a prompt of text."""
    bad_words: Sequence[Sequence[int]] | Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    log_probs: bool = False
    top_log_probs: int = 0
    lora_task_id: int | None = None
    """Id of a LoRA adapter; None or 0: the model itself."""
    guide: tuple[str, str] | None = None
    """What the answer must be: a kind of guide, and its text."""
    n: int = 1
    """Answers to the one prompt; a delta says which it belongs to."""
    prompt_log_probs: bool = False
    """The same, as far as asked, of every token of the prompt but the first; with a prompt of ids."""
    priority: int | None = None
    """Higher goes first; with a prompt of ids."""
    context_only: bool = False
    """Read the prompt, make the first token, and let another engine go on: the delta has a `context_phase`."""
    context_phase: bytes = b""
    """Go on from there: only what follows is sent."""

    @property
    def is_plain(self) -> bool:
        """Whether tokens are all that the answer consists of."""
        return not (self.log_probs or self.top_log_probs or self.prompt_log_probs or self.n > 1)


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of a stream. `tokens` holds new ids (prompt of ids), `text` new text (prompt of text)."""

    tokens: tuple[int, ...] = ()
    text: str | None = None
    finish_reason: str | None = None
    """None until the last delta of an answer, then `stop` or `length`."""
    log_probs: tuple[float, ...] | None = None
    top: TopLogProbs | None = None
    cached_tokens: int = 0
    """Tokens of the prompt whose KV cache was reused; known with the last delta."""
    index: int = 0
    """Which of several answers this belongs to."""
    prompt_log_probs: tuple[float, ...] | None = None
    """Once, of every token of the prompt but the first; `prompt_top` likewise."""
    prompt_top: TopLogProbs | None = None
    draft_tokens: int = 0
    """Tokens that speculation guessed, and of which so many were right; known with the last delta."""
    accepted_tokens: int = 0
    context_phase: bytes = b""
    """Where another engine gets the KV blocks of the prompt."""
    prefill_share: float | None = None
    """Of the time in the engine, what came before the first token; known with the last delta, if at all."""


@dataclass(frozen=True)
class Result:
    """A whole answer."""

    tokens: tuple[int, ...]
    text: str | None
    finish_reason: str
    log_probs: tuple[float, ...] | None = None
    top: TopLogProbs | None = None
    cached_tokens: int = 0


def check_single(sampling: Sampling) -> None:
    """Raises RequestError when the answer would be several."""
    if sampling.n > 1:
        raise RequestError("`generate` gives one answer", param="n", fix="Use `stream`: its deltas tell them apart.")


def joined(deltas: Sequence[Delta]) -> Result:
    """The result that a stream's deltas add up to; the last one must be final."""
    last = deltas[-1]
    assert last.finish_reason is not None
    return Result(
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        text=None if last.text is None else "".join(delta.text or "" for delta in deltas),
        finish_reason=last.finish_reason,
        log_probs=_all([delta.log_probs for delta in deltas]),
        top=_all([delta.top for delta in deltas]),
        cached_tokens=last.cached_tokens,
    )


def _all(parts: Sequence[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """The parts end to end; None when no delta carried any."""
    if all(part is None for part in parts):
        return None
    return tuple(item for part in parts if part for item in part)
