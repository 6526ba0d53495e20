"""A text asked for token by token, of servers that tell nothing of a prompt: what would follow each beginning of it.

Of each place the likeliest tokens are known by their text, five of them or the best alone; not the one that came, so
that there is no perplexity. TensorRT-LLM's two backends are such servers. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from conch_build.errors import RequestError, UnsupportedError
from conch_build.quality import TopRows

_TOP = 5
"""What OpenAI's completions give at most."""
_TOGETHER = 32
"""Beginnings of one request."""


class Ask(Protocol):
    def __call__(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of the answer to a POST. Raises ConchError for one that is refused."""


def positions(ask: Ask, ids: Sequence[int], chunk: int) -> Iterator[TopRows]:
    """The places of a text, in chunks. Raises UnsupportedError when the server tells no log probabilities at all."""
    places = range(1, len(ids))
    for start in range(0, len(places), chunk):
        part = places[start : start + chunk]
        top = [
            found
            for first in range(0, len(part), _TOGETHER)
            for found in _following(ask, [list(ids[:place]) for place in part[first : first + _TOGETHER]])
        ]
        yield TopRows(tuple(ids[place] for place in part), None, tuple(top))


def _following(ask: Ask, beginnings: Sequence[Sequence[int]]) -> list[Mapping[str, float]]:
    """The likeliest tokens after each beginning, best first."""
    body = {"prompt": beginnings, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    try:
        answer = ask("/v1/completions", {**body, "logprobs": _TOP})
    except RequestError:
        answer = ask("/v1/completions", {**body, "logprobs": 0})
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [_likeliest(choice.get("logprobs")) for choice in choices]


def _likeliest(told: Mapping[str, Any] | None) -> Mapping[str, float]:
    if not told or not told["tokens"]:
        raise UnsupportedError(
            "the server tells no log probabilities, which agreement and KL need",
            fix="Judge its answers alone: --no-text.",
        )
    top: dict[str, float] = {told["tokens"][0]: told["token_logprobs"][0]}
    if told.get("top_logprobs") and told["top_logprobs"][0]:
        top |= told["top_logprobs"][0]
    return {token: top[token] for token in sorted(top, key=lambda token: -top[token])}
