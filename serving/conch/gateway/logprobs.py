"""Log probabilities in OpenAI's two shapes. Knows nothing of streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conch.client import Delta
from conch.gateway.tokenizer import Tokenizer

_FLOOR = -9999.0
"""JSON has no infinity; OpenAI's API shows the same number for a token that could not come."""


@dataclass(frozen=True)
class TokenLogProb:
    """One token of the answer and its best competitors, best first."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...]


def entries(delta: Delta) -> list[TokenLogProb]:
    """The tokens of a delta with what the engine says about them."""
    top = delta.top or ((),) * len(delta.tokens)
    return [
        TokenLogProb(token, log_prob, tuple(pair for pair in candidates if pair[0] >= 0))
        for token, log_prob, candidates in zip(delta.tokens, delta.log_probs or (), top, strict=True)
    ]


def chat_log_probs(tokens: Sequence[TokenLogProb], tokenizer: Tokenizer) -> dict[str, Any]:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": max(log_prob, _FLOOR), "bytes": list(raw)}

    return {
        "content": [
            {**entry(item.token, item.log_prob), "top_logprobs": [entry(*pair) for pair in item.top]} for item in tokens
        ],
        "refusal": None,
    }


def completion_log_probs(tokens: Sequence[TokenLogProb], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """Four parallel lists. `offset`: characters of the answer before the first of these tokens."""
    names = [_name(item.token, tokenizer) for item in tokens]
    offsets = []
    for item in tokens:
        offsets.append(offset)
        offset += len(tokenizer.token_bytes(item.token).decode(errors="replace"))
    return {
        "tokens": names,
        "token_logprobs": [max(item.log_prob, _FLOOR) for item in tokens],
        "top_logprobs": [
            {_name(token, tokenizer): max(log_prob, _FLOOR) for token, log_prob in item.top} or None for item in tokens
        ],
        "text_offset": offsets,
    }


def _name(token: int, tokenizer: Tokenizer) -> str:
    """The token's text; parts of characters by their bytes, as OpenAI does, so that no two look the same."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
