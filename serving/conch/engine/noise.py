"""Random numbers from a seed and a position alone: without state, no other request can disturb them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Noise:
    """Endless independent numbers in [0, 1) for the token at `position` of the answer drawn with `seed`.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), started from a
    hash of both. `one` and `many` read the same stream.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, position: int) -> None:
        self._state = _mix((_mix(seed & _MASK) + position * _GOLDEN) & _MASK)

    def one(self) -> float:
        self._state = (self._state + _GOLDEN) & _MASK
        return (_mix(self._state) >> 11) * 2.0**-53

    def many(self, count: int) -> NDArray[np.float64]:
        """[count] the next numbers."""
        value = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(self._state)
        self._state = (self._state + count * _GOLDEN) & _MASK
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
        value ^= value >> np.uint64(31)
        uniforms: NDArray[np.float64] = (value >> np.uint64(11)) * 2.0**-53
        return uniforms


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
