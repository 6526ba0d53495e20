"""From OpenAI's parameters to the engine's, for one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conch.client import Sampling
from conch.gateway.prompts.guides import Guide
from conch.gateway.protocol import ChatRequest, CompletionRequest, Generation
from conch.gateway.settings import ModelSettings
from conch_build.errors import RequestError

_TIERS = {"flex": -1, "default": 0, "priority": 1}
_TIER = 10_000
"""More than priorities differ within a tier."""


def sampling_for(
    body: Generation,
    prompt: Sequence[int],
    settings: ModelSettings,
    *,
    guide: Guide | None = None,
    bad_words: Sequence[Sequence[int]] = (),
) -> Sampling:
    """The engine's parameters for one prompt. Raises RequestError when the answer cannot fit after it."""
    end_ids: tuple[int, ...] | None = None
    if body.ignore_eos:
        end_ids = tuple(body.stop_token_ids)
    elif body.stop_token_ids:
        end_ids = tuple({*settings.end_ids, *body.stop_token_ids})
    max_tokens = _max_tokens(body, len(prompt), settings.max_seq_len)
    if body.min_tokens > max_tokens:
        text = f"Invalid value for 'min_tokens': {body.min_tokens}, but the answer has at most {max_tokens}"
        raise RequestError(text, param="min_tokens", code="invalid_value")
    log_probs, top = wanted_log_probs(body)
    return Sampling(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=min(max(body.top_k, 0), settings.vocab_size),
        top_p=body.top_p,
        min_p=body.min_p or None,
        repetition_penalty=None if body.repetition_penalty == 1 else body.repetition_penalty,
        presence_penalty=body.presence_penalty or None,
        frequency_penalty=body.frequency_penalty or None,
        seed=None if body.seed is None else body.seed % 2**64,
        min_tokens=body.min_tokens or None,
        end_ids=end_ids,
        bad_words=bad_words,
        logit_bias=_logit_bias(body.logit_bias, settings.vocab_size),
        log_probs=log_probs or best_of(body) > body.n,
        top_log_probs=max(top, body.prompt_logprobs or 0),
        prompt_log_probs=wants_prompt_log_probs(body),
        lora_task_id=settings.adapters.get(body.model) if body.model else None,
        guide=guide.tensors if guide else None,
        n=best_of(body),
        priority=rank_of(body),
    )


def rank_of(body: Generation) -> int:
    """Higher goes first."""
    return _TIERS[body.tier] * _TIER - body.priority


def best_of(body: Generation) -> int:
    """How many answers are generated for each prompt."""
    return (body.best_of or body.n) if isinstance(body, CompletionRequest) else body.n


def wanted_log_probs(body: Generation) -> tuple[bool, int]:
    """Whether log probabilities are wanted, and how many candidates with each."""
    if isinstance(body, ChatRequest):
        return body.logprobs, body.top_logprobs or 0
    assert isinstance(body, CompletionRequest)
    return body.logprobs is not None, body.logprobs or 0


def wants_prompt_log_probs(body: Generation) -> bool:
    echoed = isinstance(body, CompletionRequest) and body.echo and body.logprobs is not None
    return body.prompt_logprobs is not None or echoed


def _max_tokens(body: Generation, prompt: int, limit: int) -> int:
    name, wanted = "max_tokens", body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        name, wanted = "max_completion_tokens", body.max_completion_tokens
    if wanted == 0:  # the engine makes one at least; it is not shown
        wanted = 1
    if prompt + (wanted or 1) <= limit:
        return wanted or limit - prompt
    answer = f"{wanted} tokens for the answer ({name})" if wanted else "at least one for the answer"
    raise RequestError(
        f"The model's context is {limit} tokens, but the request asks for {prompt + (wanted or 1)}: "
        f"{prompt} in the prompt and {answer}",
        param=name if wanted else "messages" if isinstance(body, ChatRequest) else "prompt",
        code="context_length_exceeded",
    )


def _logit_bias(given: dict[str, Any], vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise _bad_bias(key, f"is no token id; the vocabulary has {vocab_size} (0 to {vocab_size - 1})")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not -100 <= value <= 100:  # also for NaN
            raise _bad_bias(key, f"has a bias that is no number from -100 to 100 (vocabulary: {vocab_size})")
        bias[int(key)] = float(value)
    return bias


def _bad_bias(key: str, problem: str) -> RequestError:
    return RequestError(
        f"Invalid value for 'logit_bias': key '{key[:40]}' {problem}",
        param="logit_bias",
        code="invalid_value",
    )
