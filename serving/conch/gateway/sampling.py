"""From OpenAI's parameters to the engine's: limits that need the model are checked here, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conch.client import Sampling
from conch.gateway.protocol import ChatRequest, CompletionRequest, Generation
from conch.gateway.settings import GatewaySettings
from conch_build.errors import NotFoundError, RequestError, UnsupportedError


def check_request(body: Generation, settings: GatewaySettings) -> None:
    """Everything that can be refused before the prompt is tokenized. Raises RequestError."""
    limits = settings.limits
    if body.model not in (None, settings.model_name, *settings.adapters):
        raise NotFoundError(f"The model '{body.model}' does not exist", param="model", code="model_not_found")
    if body.stream_options is not None and not body.stream:
        raise _needs("stream_options", "stream")
    if isinstance(body, ChatRequest) and body.top_logprobs and not body.logprobs:
        raise _needs("top_logprobs", "logprobs")
    _at_most("stop", len(body.stop), limits.stops, "stops")
    _at_most("stop", max(map(len, body.stop), default=0), limits.stop_chars, "characters in a stop")
    _at_most("stop_token_ids", len(body.stop_token_ids), limits.stop_token_ids, "ids")
    _at_most("logit_bias", len(body.logit_bias), limits.bias_entries, "entries")
    for token in body.stop_token_ids:
        _check_id(token, "stop_token_ids", settings.vocab_size)
    if isinstance(body, ChatRequest):
        _at_most("messages", len(body.messages), limits.messages, "messages")
    if isinstance(body, CompletionRequest):
        _at_most("prompt", len(body.prompt), limits.prompts, "prompts")
        for prompt in body.prompt:
            for token in () if isinstance(prompt, str) else prompt:
                _check_id(token, "prompt", settings.vocab_size)
    _, wanted = wanted_log_probs(body)
    if wanted > settings.top_candidates:
        name = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
        text = f"Invalid value for '{name}': this engine gives at most {settings.top_candidates} candidates"
        raise UnsupportedError(text, param=name, code="unsupported_value")


def wanted_log_probs(body: Generation) -> tuple[bool, int]:
    """Whether log probabilities are wanted, and how many candidates with each."""
    if isinstance(body, ChatRequest):
        return body.logprobs, body.top_logprobs or 0
    assert isinstance(body, CompletionRequest)
    return body.logprobs is not None, body.logprobs or 0


def sampling_for(body: Generation, prompt: Sequence[int], settings: GatewaySettings) -> Sampling:
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
        logit_bias=_logit_bias(body.logit_bias, settings.vocab_size),
        log_probs=log_probs,
        top_log_probs=top,
        lora_task_id=settings.adapters.get(body.model) if body.model else None,
    )


def _max_tokens(body: Generation, prompt: int, limit: int) -> int:
    name, wanted = "max_tokens", body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        name, wanted = "max_completion_tokens", body.max_completion_tokens
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


def _needs(param: str, other: str) -> RequestError:
    text = f"Invalid value for '{param}': it needs '{other}': true"
    return RequestError(text, param=param, code="invalid_value")


def _bad_bias(key: str, problem: str) -> RequestError:
    return RequestError(
        f"Invalid value for 'logit_bias': key '{key[:40]}' {problem}",
        param="logit_bias",
        code="invalid_value",
    )


def _check_id(token: int, param: str, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        text = f"Invalid value for '{param}': {token} is no token id; the vocabulary has {vocab_size}"
        raise RequestError(text, param=param, code="invalid_value")


def _at_most(param: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise RequestError(
            f"Invalid value for '{param}': {count} {what}, at most {limit}", param=param, code="too_many"
        )
