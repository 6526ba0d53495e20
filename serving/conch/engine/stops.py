"""When an answer is over: end ids, stop words, the token limit. Knows nothing of text or of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class StopRule:
    """The ends of one request; `end_ids` are those in force, its own or the artifact's."""

    __slots__ = ("_max_tokens", "_min_tokens", "_words", "end_ids")

    def __init__(
        self, end_ids: frozenset[int], words: Sequence[tuple[int, ...]], min_tokens: int, max_tokens: int
    ) -> None:
        self.end_ids = end_ids
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._words: dict[int, list[list[int]]] = {}  # by their last token
        for word in words:
            self._words.setdefault(word[-1], []).append(list(word))

    def after(self, tokens: list[int], produced: int) -> Literal["stop", "length"] | None:
        """Whether the answer, the last `produced` of `tokens`, ends with its newest token (not an end id)."""
        if self._words and produced >= self._min_tokens:
            for word in self._words.get(tokens[-1], ()):
                if len(word) <= produced and tokens[-len(word) :] == word:
                    return "stop"
        return "length" if produced >= self._max_tokens else None
