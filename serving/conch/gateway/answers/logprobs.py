"""Log probabilities in OpenAI's two shapes. Knows nothing of streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conch.client import Delta, TopLogProbs
from conch.gateway.prompts.tokenizer import Tokenizer

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
    return _entries(delta.tokens, delta.log_probs or (), delta.top)


def prompt_entries(prompt: Sequence[int], delta: Delta) -> list[TokenLogProb]:
    """The tokens of the prompt but the first with what the engine says about them."""
    return _entries(prompt[1:], delta.prompt_log_probs or (), delta.prompt_top)


def _entries(tokens: Sequence[int], log_probs: Sequence[float], top: TopLogProbs | None) -> list[TokenLogProb]:
    return [
        TokenLogProb(token, log_prob, tuple(pair for pair in candidates if pair[0] >= 0))
        for token, log_prob, candidates in zip(tokens, log_probs, top or ((),) * len(tokens), strict=True)
    ]


def chat_log_probs(tokens: Sequence[TokenLogProb], tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`, with `count` competitors each."""

    def entry(token: int, log_prob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": max(log_prob, _FLOOR), "bytes": list(raw)}

    return {
        "content": [
            {**entry(item.token, item.log_prob), "top_logprobs": [entry(*pair) for pair in item.top[:count]]}
            for item in tokens
        ],
        "refusal": None,
    }


def completion_log_probs(
    tokens: Sequence[TokenLogProb], tokenizer: Tokenizer, offset: int, count: int, first: int | None = None
) -> dict[str, Any]:
    """Four parallel lists. `offset`: characters of the answer before the first of these tokens.

    `first`: a token before them, of which nothing is known.
    """
    shown = [first] if first is not None else []
    ids = [*shown, *(item.token for item in tokens)]
    nothing = [None] * len(shown)
    offsets = []
    for token in ids:
        offsets.append(offset)
        if tokenizer.decoder.shown([token]):
            offset += len(tokenizer.token_bytes(token).decode(errors="replace"))
    return {
        "tokens": [_name(token, tokenizer) for token in ids],
        "token_logprobs": [*nothing, *(max(item.log_prob, _FLOOR) for item in tokens)],
        "top_logprobs": [
            *nothing,
            *(
                {_name(token, tokenizer): max(log_prob, _FLOOR) for token, log_prob in item.top[:count]} or None
                for item in tokens
            ),
        ],
        "text_offset": offsets,
    }


def prompt_log_probs(
    tokens: Sequence[TokenLogProb], count: int, tokenizer: Tokenizer
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's shape: for every token of the prompt its own and the `count` best by id; null for the first.

    The rank of a token that is none of the candidates is not known: null.
    """

    def entry(token: int, log_prob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": max(log_prob, _FLOOR), "rank": rank, "decoded_token": _name(token, tokenizer)}

    entries: list[dict[str, dict[str, Any]] | None] = [None]
    for item in tokens:
        ranks = {token: rank for rank, (token, _) in enumerate(item.top, 1)}
        best = {str(token): entry(token, value, rank) for rank, (token, value) in enumerate(item.top[:count], 1)}
        entries.append({str(item.token): entry(item.token, item.log_prob, ranks.get(item.token)), **best})
    return entries


def _name(token: int, tokenizer: Tokenizer) -> str:
    """The token's text; parts of characters by their bytes, as OpenAI does, so that no two look the same."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
