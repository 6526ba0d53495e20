"""A generation request, what comes back, and the checks made before it is taken.

Speaks of token ids only: knows nothing of text, of schedules or of KV blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from conch.engine.config import EngineConfig
from conch.engine.guide import Guide
from conch.engine.state import KvState
from conch_build.errors import ConchError, RequestError, UnsupportedError

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]
FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)

GREEDY_BELOW = 1e-5
"""A temperature under this takes the best token: dividing by it would overflow."""
MAX_TOP_LOG_PROBS = 20


@dataclass(frozen=True, eq=False)
class SamplingParams:
    """How to choose each token. The defaults sample the model's own distribution."""

    temperature: float = 1.0
    """0 takes the best token."""
    top_k: int = 0
    """Keep the k best tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and answer, as transformers does it."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both over the answer, as OpenAI and TensorRT-LLM do them."""
    seed: int | None = None
    """The same seed, prompt and parameters give the same answer in any batch. None: a random one."""
    min_tokens: int = 0
    """No end id before this many tokens, and no stop word that ends earlier."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    embedding_bias: NDArray[np.floating[Any]] | None = None
    """[vocabulary] added to the logits; -inf forbids a token."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    guide: Guide | None = None
    """What the answer must be."""
    end_ids: frozenset[int] | None = None
    """None: the artifact's. Empty: no token ends the answer."""
    log_probs: bool = False
    """Log probability of each chosen token as the model has it: before bias, penalties and temperature."""
    top_log_probs: int = 0
    """So many best tokens beside each chosen one, at most 20."""
    prompt_log_probs: bool = False
    """The same, as far as asked, of every prompt token but the first; such a prompt reuses no blocks."""

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1


@dataclass(eq=False)
class Request:
    """One prompt to be continued by at most `max_tokens` tokens."""

    id: str
    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline: float | None = None
    """`time.monotonic()` seconds; what is unfinished then ends with "deadline"."""
    priority: int = 0
    """Higher goes first."""
    keep_state: bool = False
    """Give the state with the last output, so that another engine can go on from there."""
    state: KvState | None = None
    """Go on from here: prompt and the beginning of the answer are computed, and only what follows is sent."""
    n: int = 1
    """So many answers, each drawn with noise of its own; they share the blocks of the prompt."""
    adapter: str | None = None
    """Name of the LoRA adapter to use."""
    is_cancelled: Callable[[], bool] | None = None
    """Asked between steps, on the engine's thread."""


@dataclass(frozen=True)
class Usage:
    """What a request took. Times are `time.monotonic_ns()`; 0 for what never happened."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were already there."""
    completion_tokens: int
    """Of the answer, those that a state brought along included; the end id is not one of them."""
    draft_tokens: int
    """Guessed by speculation, of which..."""
    accepted_tokens: int
    """...so many turned out right; those behind the end of the answer count as wrong."""
    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    new_blocks: int
    reused_blocks: int


@dataclass(frozen=True, slots=True)
class PromptLogProbs:
    """Of each prompt token but the first: its log probability, and the best tokens in its place as `Output.top`."""

    log_probs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one answer. The last one of each answer carries `finish_reason` and `usage`."""

    request_id: str
    tokens: tuple[int, ...] = ()
    """New ids, stop words included, the end id not."""
    log_probs: tuple[float, ...] | None = None
    top: tuple[tuple[tuple[int, float], ...], ...] | None = None
    """For each token the best (id, log probability) pairs, best first."""
    prompt_log_probs: PromptLogProbs | None = None
    """With the first tokens of a request that asked for them, its answer 0."""
    finish_reason: FinishReason | None = None
    error: ConchError | None = None
    usage: Usage | None = None
    state: KvState | None = None
    """With the last output of a request that wanted it kept."""
    index: int = 0
    """Which of the request's `n` answers this belongs to."""
    final: bool = False
    """The request is over: every one of its answers is."""


_BOUNDS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("0 or more", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("above 0", lambda value: value > 0),
    "presence_penalty": ("finite", lambda value: True),
    "frequency_penalty": ("finite", lambda value: True),
}
_COUNTS: dict[str, tuple[int, int | None]] = {
    "top_k": (0, None),
    "min_tokens": (0, None),
    "top_log_probs": (0, MAX_TOP_LOG_PROBS),
}


def check_request(request: Request, config: EngineConfig, vocab_size: int) -> None:
    """Raise RequestError, naming the parameter and its range, if the engine cannot run this request."""
    if not isinstance(request.id, str) or not request.id:
        raise _invalid("id", f"must be a non-empty text, not {request.id!r}")
    _check_count("max_tokens", request.max_tokens, 1, None)
    _check_count("n", request.n, 1, config.batch_size)
    _check_ids("prompt", request.prompt, vocab_size)
    _check_length(len(request.prompt), request.max_tokens, config)
    if request.deadline is not None and not _is_finite(request.deadline):
        raise _invalid("deadline", f"must be a finite number of seconds, not {request.deadline!r}")
    _check_sampling(request.sampling, vocab_size)
    if request.state is not None or request.keep_state:
        for name, given in (
            ("n", request.n > 1),
            ("adapter", request.adapter is not None),
            ("prompt_log_probs", request.sampling.prompt_log_probs),
        ):
            if given:
                raise UnsupportedError(f"a KV state cannot be kept or taken up with `{name}`", param=name)


def _check_length(prompt: int, max_tokens: int, config: EngineConfig) -> None:
    if prompt + max_tokens > config.max_seq_len:
        raise RequestError(
            f"the context holds {config.max_seq_len} tokens: the prompt has {prompt} and max_tokens asks for "
            f"{max_tokens} more, {prompt + max_tokens} in all",
            param="max_tokens" if prompt < config.max_seq_len else "prompt",
            code="context_length_exceeded",
            fix="Shorten the prompt or lower max_tokens.",
        )
    if prompt > config.max_prompt_len:
        raise RequestError(
            f"without chunked_prefill a prompt has at most {config.max_prompt_len} tokens; this has {prompt}",
            param="prompt",
            code="context_length_exceeded",
            fix="Shorten it, or set engine.chunked_prefill or a larger engine.max_num_tokens in the plan.",
        )


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    for name, (meaning, holds) in _BOUNDS.items():
        value = getattr(sampling, name)
        if not (_is_finite(value) and holds(value)):
            raise _invalid(name, f"must be {meaning}, not {value!r}")
    for name, (low, high) in _COUNTS.items():
        _check_count(name, getattr(sampling, name), low, high)
    if sampling.seed is not None and not _in_range(sampling.seed, -(1 << 63), (1 << 64) - 1):
        raise _invalid("seed", f"must be a whole number of 64 bits, not {sampling.seed!r}")
    for token, bias in sampling.logit_bias.items():
        _check_ids("logit_bias", (token,), vocab_size)
        if not _is_finite(bias):
            raise _invalid("logit_bias", f"the bias of token {token} must be a finite number, not {bias!r}")
    for name in ("stop_words", "bad_words"):
        for word in getattr(sampling, name):
            _check_ids(name, word, vocab_size)
    if sampling.end_ids:
        _check_ids("end_ids", sampling.end_ids, vocab_size)
    if sampling.embedding_bias is not None:
        _check_bias(sampling.embedding_bias, vocab_size)


def _check_bias(bias: NDArray[np.floating[Any]], vocab_size: int) -> None:
    if bias.shape != (vocab_size,):
        raise _invalid(
            "embedding_bias", f"must have the shape [{vocab_size}] of the vocabulary, not {list(bias.shape)}"
        )
    if not bias.max() < math.inf:
        raise _invalid("embedding_bias", "must hold finite numbers or -inf")
    if bias.max() == -math.inf:
        raise _invalid("embedding_bias", "forbids every token")


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    found = list(ids)
    if not found:
        raise _invalid(name, "must not be empty")
    try:
        array = np.asarray(found)
        if array.dtype.kind in "iu" and array.ndim == 1 and array.min() >= 0 and array.max() < vocab_size:
            return
    except (ValueError, OverflowError):
        pass  # not numbers at all: named below
    for token in found:
        if not _in_range(token, 0, vocab_size - 1):
            raise _invalid(name, f"token id {token!r} is not in the vocabulary, which runs from 0 to {vocab_size - 1}")


def _check_count(name: str, value: object, low: int, high: int | None) -> None:
    if not _in_range(value, low, math.inf if high is None else high):
        meaning = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise _invalid(name, f"must be a whole number {meaning}, not {value!r}")


def _in_range(value: object, low: float, high: float) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _invalid(param: str, what: str) -> RequestError:
    return RequestError(what, param=param, code="invalid_value", where=param)
