"""The gateway's pool for hundreds of servers: the one with the least to do, found without looking at each of them.

The one prefix that a simulated traffic shares is soon known to all, so that it decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Sequence

from conch.gateway.routing.pool import AnyDoor, Member, Place, Pool
from conch.gateway.routing.standing import Standing

_Entry = tuple[int, int, int]
"""Tokens to do, when it was chosen last, number."""


class _Told(Standing):
    """Tells a heap whenever it has changed."""

    def tell(self, heap: list[_Entry], number: int) -> None:
        self._heap, self._number = heap, number
        self._push()

    def took(self, tokens: int) -> None:
        super().took(tokens)
        self._push()

    def gave_back(self, tokens: int) -> None:
        super().gave_back(tokens)
        self._push()

    def probed(self, alive: bool, now: float, interval: float) -> None:
        super().probed(alive, now, interval)
        self._push()

    def _push(self) -> None:
        heapq.heappush(self._heap, (self.tokens, self.picked_at, self._number))


class WidePool(Pool[AnyDoor]):
    def __init__(self, doors: Iterable[AnyDoor], kv_tokens: int | None = None) -> None:
        self._heap: list[_Entry] = []
        super().__init__(doors, kv_tokens)

    def join(self, door: AnyDoor) -> None:
        super().join(door)
        member = next(reversed(self.members.values()))
        member.standing = standing = _Told()
        standing.tell(self._heap, member.number)

    def pick(
        self, prompt: Sequence[int], max_tokens: int, salt: Hashable = None, *, but: Collection[Member[AnyDoor]] = ()
    ) -> Place[AnyDoor]:
        least, members = self._least(), self.members
        if but or least is None:
            return super().pick(prompt, max_tokens, salt, but=but)
        self.members = {least.number: least}
        try:
            return super().pick(prompt, max_tokens, salt)
        finally:
            self.members = members

    def _least(self) -> Member[AnyDoor] | None:
        """Of those that are up, the one with the least to do."""
        heap = self._heap
        while heap:
            tokens, picked_at, number = heap[0]
            member = self.members.get(number)
            if member is not None:
                standing = member.standing
                if standing.up and (standing.tokens, standing.picked_at) == (tokens, picked_at):
                    return member
            heapq.heappop(heap)
        return None
