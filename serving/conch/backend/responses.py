"""The engine's outputs as the tensors of responses: one a step when streaming, one in all when not.

Works with plain arrays; which of them are sent is the caller's choice. Each has a batch dimension of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.backend.tensors import Call
from conch.engine.request import Output, PromptLogProbs, Usage
from conch.text import WINDOW
from conch_build.errors import ConchError

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Response:
    """The tensors of one response; `error` replaces them."""

    tensors: Tensors
    final: bool
    error: ConchError | None = None


@dataclass
class Answer:
    """One growing answer to a call; a call may want several, each with responses of its own."""

    call: Call
    index: int = 0
    stream_interval: int = 1
    """Tokens that a response of a stream holds, but for the first and the last one."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    prompt: PromptLogProbs | None = None
    context_phase: bytes = b""
    """Where another engine gets the KV blocks, if it was asked to go on with the answer."""
    _sent: int = 0

    def add(self, output: Output) -> Response | None:
        """The response that an output calls for, if any."""
        self.ids += output.tokens
        self.log_probs += output.log_probs or ()
        self.top += output.top or ()
        if output.prompt_log_probs is not None:
            self.prompt = output.prompt_log_probs
        if output.finish_reason == "error":
            return Response({}, output.final, error=output.error)
        if not (output.finish_reason or self._is_due()):
            return None
        if self.call.draft and output.finish_reason:
            output = self._judged(output)
        response = Response(self._tensors(output), output.final)
        self._sent = len(self.ids)
        return response

    def take(self, output: Output) -> list[int]:
        """The tokens that are due, for a caller who gets them otherwise than by a response."""
        self.ids += output.tokens
        if not self._is_due():
            return []
        new = self.ids[self._sent :]
        self._sent = len(self.ids)
        return new

    def _judged(self, output: Output) -> Output:
        """Take back what follows the first token that the caller has guessed wrong."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.ids, self.call.draft, strict=False))
        right = sum(1 for _ in same)
        if len(self.ids) > right + 1:
            for values in (self.ids, self.log_probs, self.top):
                del values[right + 1 :]
            output = replace(output, finish_reason="length")
        if output.usage is None:
            return output
        return replace(output, usage=replace(output.usage, draft_tokens=len(self.call.draft), accepted_tokens=right))

    def _is_due(self) -> bool:
        """Whether what has come so far is to be sent before the answer is whole."""
        return self.call.streaming and (not self._sent or len(self.ids) - self._sent >= self.stream_interval)

    def _tensors(self, output: Output) -> dict[str, NDArray[Any]]:
        new = self.ids[self._sent :]
        shown = new if self.call.streaming or self.call.exclude_input else [*self.call.request.prompt, *new]
        tensors: dict[str, NDArray[Any]] = {
            "output_ids": _row(shown, np.int32, beams=True),
            "sequence_length": _row([len(shown)], np.int32),
            "batch_index": _row([0], np.int32),
            "sequence_index": _row([self.index], np.int32),
            "conch_finish_reason": np.array([[output.finish_reason or ""]], np.object_),
            "conch_previous_ids": _row(self.ids[max(0, self._sent - WINDOW) : self._sent], np.int32),
        }
        if self.call.log_probs:
            tensors["cum_log_probs"] = _row([sum(self.log_probs)], np.float32)
            tensors["output_log_probs"] = _row(self.log_probs[self._sent :], np.float32, beams=True)
        if self.call.request.sampling.top_log_probs:
            count = self.call.request.sampling.top_log_probs
            tensors |= dict(
                zip(("conch_top_ids", "conch_top_log_probs"), _top(self.top[self._sent :], count), strict=True)
            )
        if self.prompt is not None:
            tensors |= self._prompt_tensors(self.prompt)
            self.prompt = None
        if self.context_phase:
            tensors["context_phase_params"] = np.frombuffer(self.context_phase, np.uint8).reshape(1, -1)
        if self.call.num_input_tokens:
            tensors["num_input_tokens"] = _row([len(self.call.request.prompt)], np.int32)
        if self.call.num_output_tokens:
            tensors["num_output_tokens"] = _row([len(self.ids)], np.int32)
        if output.usage:
            tensors["conch_cached_tokens"] = _row([output.usage.cached_tokens], np.int32)
            if self.call.perf_metrics:
                tensors |= _performance(output.usage)
        return tensors

    def _prompt_tensors(self, prompt: PromptLogProbs) -> dict[str, NDArray[Any]]:
        """Once, of every prompt token but the first."""
        ids, values = _top(list(prompt.top), self.call.request.sampling.top_log_probs)
        return {
            "conch_prompt_log_probs": _row(list(prompt.log_probs), np.float32),
            "conch_prompt_top_ids": ids,
            "conch_prompt_top_log_probs": values,
        }


def _performance(usage: Usage) -> dict[str, NDArray[Any]]:
    return {
        "kv_cache_alloc_new_blocks": _row([usage.new_blocks], np.int32),
        "kv_cache_reused_blocks": _row([usage.reused_blocks], np.int32),
        "kv_cache_alloc_total_blocks": _row([usage.new_blocks + usage.reused_blocks], np.int32),
        "arrival_time_ns": _row([usage.arrival_ns], np.int64),
        "first_scheduled_time_ns": _row([usage.first_scheduled_ns], np.int64),
        "first_token_time_ns": _row([usage.first_token_ns], np.int64),
        "last_token_time_ns": _row([usage.last_token_ns], np.int64),
        "total_draft_tokens": _row([usage.draft_tokens], np.int32),
        "total_accepted_draft_tokens": _row([usage.accepted_tokens], np.int32),
        "acceptance_rate": _row([usage.accepted_tokens / max(1, usage.draft_tokens)], np.float32),
    }


def _top(top: list[tuple[tuple[int, float], ...]], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Ids and log probabilities, [1, tokens, count], most likely first; where the vocabulary ran out, id -1."""
    ids = np.full((1, len(top), count), -1, np.int32)
    values = np.full((1, len(top), count), -np.inf, np.float32)
    for row, candidates in enumerate(top):
        for column, (token, log_prob) in enumerate(candidates[:count]):
            ids[0, row, column], values[0, row, column] = token, log_prob
    return ids, values


def _row(values: list[Any], dtype: type[np.generic], *, beams: bool = False) -> NDArray[Any]:
    """[1, n], or [1, 1, n] where upstream has a dimension of beams."""
    return np.array(values, dtype).reshape((1, 1, -1) if beams else (1, -1))
