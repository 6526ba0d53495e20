"""Which servers have computed the start of a prompt lately: a guess at what their prefix caches hold.

A prompt is cut into blocks as the engine's cache cuts it; a block's name takes in all blocks before it. Pure; what is
forgotten by a server is noticed by nobody here, so that a guess may be wrong and costs a prefill at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence

BLOCK = 32
"""Tokens."""


class Prefixes:
    """`capacity`: blocks that are remembered, those not seen for longest forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._owners: OrderedDict[int, int] = OrderedDict()
        """Block -> the servers that have it, as the bits of a number."""

    def matched(self, prompt: Sequence[int], salt: Hashable = None) -> Mapping[int, int]:
        """Server -> tokens at the start of `prompt` that it has; servers without any are left out.

        `salt`: what else must be the same, such as the adapter.
        """
        found: dict[int, int] = {}
        holders = -1
        for number, block in enumerate(_blocks(prompt, salt), 1):
            holders &= self._owners.get(block, 0)
            if not holders:
                break
            for server in _bits(holders):
                found[server] = number * BLOCK
        return found

    def saw(self, server: int, prompt: Sequence[int], salt: Hashable = None) -> None:
        """The server has computed `prompt`."""
        for block in _blocks(prompt, salt):
            self._owners[block] = self._owners.get(block, 0) | 1 << server
            self._owners.move_to_end(block)
        while len(self._owners) > self.capacity:
            self._owners.popitem(last=False)

    def forget(self, server: int) -> None:
        """The server has lost its cache."""
        others = ~(1 << server)
        self._owners = OrderedDict((block, left) for block, owners in self._owners.items() if (left := owners & others))


def _blocks(prompt: Sequence[int], salt: Hashable) -> Iterator[int]:
    """The names of the full blocks, one after the other."""
    name = hash(salt)
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        name = hash((name, tuple(prompt[start : start + BLOCK])))
        yield name


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
