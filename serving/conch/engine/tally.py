"""How often each token has appeared in one request, for the penalties. Knows nothing of logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tally:
    """Distinct ids of prompt and answer; counts are of the answer alone. Adding takes constant time."""

    __slots__ = ("_counts", "_ids", "_index")

    def __init__(self, prompt: Iterable[int]) -> None:
        self._index = {token: at for at, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.fromiter(self._index, np.int64, len(self._index))
        self._counts = np.zeros(len(self._index), np.int64)

    def add(self, token: int) -> None:
        at = self._index.setdefault(token, len(self._index))
        if at == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(at + 64, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(at + 64, np.int64)])
        self._ids[at] = token
        self._counts[at] += 1

    @property
    def ids(self) -> NDArray[np.integer[Any]]:
        """[distinct] every id of prompt and answer."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> NDArray[np.integer[Any]]:
        """[distinct] how often each of `ids` is in the answer."""
        return self._counts[: len(self._index)]
