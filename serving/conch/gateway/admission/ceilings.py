"""What of a request is refused before any work is done for it: it is too much, or asks for what the engine has not."""

from __future__ import annotations

import json
import re

from conch.gateway.prompts.guides import guide_of
from conch.gateway.prompts.sampling import best_of, wanted_log_probs
from conch.gateway.protocol import ChatRequest, CompletionRequest, Generation
from conch.gateway.settings import ModelSettings
from conch_build.errors import RequestError, UnsupportedError

_PATTERN = re.compile(r'"pattern"\s*:\s*"((?:[^"\\]|\\.)*)"')


def check_request(body: Generation, settings: ModelSettings) -> None:
    """Everything that can be refused before the prompt is tokenized. Raises RequestError."""
    limits = settings.limits
    if body.stream_options is not None and not body.stream:
        raise _needs("stream_options", "stream")
    if body.stream and body.prompt_logprobs is not None:
        text = "Invalid value for 'prompt_logprobs': they are not streamed"
        raise RequestError(text, param="prompt_logprobs", code="invalid_value")
    _at_most("stop", len(body.stop), limits.stops, "stops")
    _at_most("stop", max(map(len, body.stop), default=0), limits.stop_chars, "characters in a stop")
    _at_most("stop_token_ids", len(body.stop_token_ids), limits.stop_token_ids, "ids")
    _at_most("bad_words", len(body.bad_words), limits.bad_words, "words")
    _at_most("bad_words", max(map(len, body.bad_words), default=0), limits.stop_chars, "characters in a word")
    _at_most("logit_bias", len(body.logit_bias), limits.bias_entries, "entries")
    for token in body.stop_token_ids:
        check_id(token, "stop_token_ids", settings.vocab_size)
    if (guide := guide_of(body)) is not None:
        _at_most(guide.param, len(guide.text.encode()), limits.schema_bytes, "bytes")
        longest = len(guide.text) if guide.kind == "regex" else _longest_pattern(guide.text)
        _at_most(guide.param, longest, limits.pattern_chars, "characters in a pattern")
    if isinstance(body, ChatRequest):
        _check_chat(body, settings)
    if isinstance(body, CompletionRequest):
        _check_completion(body, settings)
    _check_candidates(body, settings)


def check_id(token: int, param: str, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        text = f"Invalid value for '{param}': {token} is no token id; the vocabulary has {vocab_size}"
        raise RequestError(text, param=param, code="invalid_value")


def _check_chat(body: ChatRequest, settings: ModelSettings) -> None:
    limits = settings.limits
    if body.top_logprobs and not body.logprobs:
        raise _needs("top_logprobs", "logprobs")
    _at_most("messages", len(body.messages), limits.messages, "messages")
    _at_most("n", body.n, limits.choices, "choices")
    _at_most("tools", len(body.tools), limits.tools, "tools")
    tools = json.dumps([tool.model_dump() for tool in body.tools]) if body.tools else ""
    _at_most("tools", len(tools), limits.schema_bytes, "bytes")
    _at_most("tools", _longest_pattern(tools), limits.pattern_chars, "characters in a pattern")
    _at_most("chat_template_kwargs", len(body.chat_template_kwargs), 16, "variables")
    texts = [value for value in body.chat_template_kwargs.values() if isinstance(value, str)]
    _at_most("chat_template_kwargs", max(map(len, texts), default=0), limits.stop_chars, "characters in a text")


def _check_completion(body: CompletionRequest, settings: ModelSettings) -> None:
    limits = settings.limits
    _at_most("prompt", len(body.prompt), limits.prompts, "prompts")
    many = "n" if body.best_of is None else "best_of"
    _at_most(many, len(body.prompt) * best_of(body), limits.choices, "choices")
    for prompt in body.prompt:
        # What is before the last ids that fit is cut off, or too much: either is found out later.
        for token in () if isinstance(prompt, str) else prompt[-settings.max_seq_len :]:
            check_id(token, "prompt", settings.vocab_size)


def _check_candidates(body: Generation, settings: ModelSettings) -> None:
    name = "top_logprobs" if isinstance(body, ChatRequest) else "logprobs"
    for param, wanted in ((name, wanted_log_probs(body)[1]), ("prompt_logprobs", body.prompt_logprobs or 0)):
        if wanted > settings.top_candidates:
            text = f"Invalid value for '{param}': this engine gives at most {settings.top_candidates} candidates"
            raise UnsupportedError(text, param=param, code="unsupported_value")


def _longest_pattern(text: str) -> int:
    """Characters of the longest `pattern` in JSON text, as it is written there."""
    return max(map(len, _PATTERN.findall(text)), default=0)


def _needs(param: str, other: str) -> RequestError:
    text = f"Invalid value for '{param}': it needs '{other}': true"
    return RequestError(text, param=param, code="invalid_value")


def _at_most(param: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise RequestError(
            f"Invalid value for '{param}': {count} {what}, at most {limit}", param=param, code="too_many"
        )
