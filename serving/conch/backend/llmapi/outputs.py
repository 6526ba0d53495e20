"""What the LLM API gives back, step by step, as the outputs of one answer. Needs no `tensorrt_llm`.

The LLM API repeats everything it has said; an answer takes what is new of it, token by token, and ends by the engine's
own rules: at an end id, which is not part of the answer, or at a stop word, which is. What comes behind is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from conch.engine.request import FinishReason, Output, Request, Usage
from conch.engine.stops import StopRule
from conch_build.errors import ServiceError

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "timeout": "deadline",
    "cancelled": "cancelled",
}


class Completion(Protocol):
    """`tensorrt_llm.llmapi.CompletionOutput`, as far as it is read."""

    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Any]]
    finish_reason: str | None


@dataclass(frozen=True)
class Timing:
    """`time.monotonic_ns()` of what this side has seen; 0 for what never happened."""

    arrival_ns: int
    first_token_ns: int = 0
    last_token_ns: int = 0


class Progress:
    """One answer as it grows."""

    def __init__(self, request: Request, end_ids: frozenset[int], index: int) -> None:
        self._request = request
        self._index = index
        self._stop = StopRule(end_ids, request.sampling.stop_words, request.sampling.min_tokens, request.max_tokens)
        self._tokens = list(request.prompt)
        self._seen = 0  # of the LLM API's tokens
        self.finish_reason: FinishReason | None = None

    @property
    def produced(self) -> int:
        return len(self._tokens) - len(self._request.prompt)

    def take(self, completion: Completion) -> Output:
        """What is new; `finish_reason` is set when that ends the answer, and nothing is new behind it.

        Raises ServiceError when a log probability is missing.
        """
        start = self._seen
        new = [] if self.finish_reason else list(completion.token_ids[start:])
        self._seen += len(new)
        taken: list[int] = []
        for token in new:
            if token in self._stop.end_ids:
                self.finish_reason = "stop"
                break
            taken.append(token)
            self._tokens.append(token)
            self.finish_reason = self._stop.after(self._tokens, self.produced)
            if self.finish_reason is not None:
                break
        if self.finish_reason is None and completion.finish_reason is not None:
            self.finish_reason = _REASONS[completion.finish_reason]
        scores = self._scores(completion, start, taken)
        wants_top = self._request.sampling.top_log_probs > 0
        return Output(
            self._request.id,
            tuple(taken),
            tuple(score for score, _ in scores) if scores else None,
            tuple(top for _, top in scores) if scores and wants_top else None,
            index=self._index,
        )

    def _scores(
        self, completion: Completion, start: int, tokens: Sequence[int]
    ) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
        """Of each token its log probability, and the best tokens in its place."""
        if not self._request.sampling.log_probs:
            return []
        count = self._request.sampling.top_log_probs
        scores = []
        for token, place in zip(tokens, completion.logprobs[start : start + len(tokens)], strict=True):
            if token not in place:
                raise ServiceError(f"TensorRT-LLM gave no log probability of the chosen token {token}", where="engine")
            best = sorted(((other, float(entry.logprob)) for other, entry in place.items()), key=lambda pair: -pair[1])
            scores.append((float(place[token].logprob), tuple(best[:count])))
        return scores


def usage_of(request: Request, produced: int, timing: Timing, result: Any) -> Usage:
    """What an answer took, from TensorRT-LLM's own measurements where it has them.

    `result`: its output of the LLM API, None if it never got there.
    """
    metrics = getattr(result.outputs[0], "request_perf_metrics", None) if result is not None else None
    cache, times, drafts = (
        getattr(metrics, name, None) for name in ("kv_cache_metrics", "timing_metrics", "speculative_decoding")
    )
    return Usage(
        prompt_tokens=len(request.prompt),
        cached_tokens=int(getattr(result, "cached_tokens", 0) or 0),
        completion_tokens=produced,
        draft_tokens=int(getattr(drafts, "total_draft_tokens", 0)),
        accepted_tokens=int(getattr(drafts, "total_accepted_draft_tokens", 0)),
        arrival_ns=_ns(times, "arrival_time") or timing.arrival_ns,
        first_scheduled_ns=_ns(times, "first_scheduled_time"),
        first_token_ns=_ns(times, "first_token_time") or timing.first_token_ns,
        last_token_ns=_ns(times, "last_token_time") or timing.last_token_ns,
        new_blocks=int(getattr(cache, "num_new_allocated_blocks", 0)),
        reused_blocks=int(getattr(cache, "num_reused_blocks", 0)),
    )


def _ns(times: Any, name: str) -> int:
    value = getattr(times, name, None)
    return value // timedelta(microseconds=1) * 1000 if isinstance(value, timedelta) else 0
