"""Where the n-grams of one text last stood, so that what followed them can be guessed to follow again."""

from __future__ import annotations


class NgramIndex:
    """Over a list of tokens that only grows. Finding is a few lookups, however long the text is."""

    __slots__ = ("_after", "_seen", "_sizes")

    def __init__(self, longest: int) -> None:
        """N-grams of `longest` tokens down to two: a single token says too little."""
        self._sizes = range(longest, min(2, longest) - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 1

    def continuation(self, tokens: list[int], count: int) -> list[int]:
        """At most `count` tokens that followed the latest earlier place of the text's last n-gram, longest first."""
        for end in range(self._seen, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._after[tuple(tokens[end - size : end])] = end
        self._seen = len(tokens)
        for size in self._sizes:
            after = self._after.get(tuple(tokens[-size:]))
            if after is not None:
                return tokens[after : after + count]
        return []
