"""Words as the ids that a model may write them with, and the tensor that carries them.

A word after a space and the bare word have different ids, so both are sought. Words come one a string: a
comma in one means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch_build.errors import RequestError

_LINE = "\n"


def forms(word: str, tokenizer: Any) -> list[tuple[int, ...]]:
    """The distinct id sequences of a word: alone, after a space, and in the middle of a line's text."""
    encode = _encoder(tokenizer)
    line, continued = encode(_LINE), encode(_LINE + word)
    found = [encode(word), encode(" " + word)]
    if continued[: len(line)] == line:
        found.append(continued[len(line) :])
    return list(dict.fromkeys(form for form in found if form))


def word_list(words: Iterable[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Every form of every word, once."""
    return list(dict.fromkeys(form for word in words if word for form in forms(word, tokenizer)))


def bias_vector(words: Sequence[str], weights: Sequence[float], tokenizer: Any, vocab_size: int) -> NDArray[np.float32]:
    """FP32 [vocab_size]: the weight of each word added to every id of its forms; empty without words."""
    if len(words) != len(weights):
        raise RequestError(
            f"{len(words)} embedding bias words with {len(weights)} weights", param="embedding_bias_weights"
        )
    bias = np.zeros(vocab_size if words else 0, np.float32)
    for word, weight in zip(words, weights, strict=True):
        ids = {token for form in forms(word, tokenizer) for token in form}
        bias[sorted(ids)] += weight
    return bias


def encode_words(words: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """INT32 [2, n]: row 0 holds all ids, row 1 where each word ends, padded with -1."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist() if words else []
    return np.array([ids, ends + [-1] * (len(ids) - len(ends))], np.int32).reshape(2, -1)


def decode_words(array: NDArray[Any], name: str) -> tuple[tuple[int, ...], ...]:
    """The inverse of `encode_words`, batched or not. Raises RequestError that names the tensor."""
    ids, ends = array.reshape(2, -1).tolist()
    words: list[tuple[int, ...]] = []
    start = 0
    for end in ends:
        if end < 0:
            break
        if not start < end <= len(ids):
            raise RequestError(f"`{name}` has the ends {ends} over {len(ids)} ids; they must grow", param=name)
        words.append(tuple(ids[start:end]))
        start = end
    return tuple(words)


def _encoder(tokenizer: Any) -> Any:
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)
