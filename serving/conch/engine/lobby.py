"""Where requests wait for what only some of them need, before they get in line: first their guide, then their adapter.

Knows nothing of guides, adapters or schedules, but who waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from conch.engine.adapters import Adapters
from conch.engine.guidance import Guidance
from conch.engine.sequence import Sequence
from conch_build.errors import ConchError, NotFoundError, UnsupportedError

Admitted = tuple[list[Sequence], list[tuple[Sequence, ConchError]]]
"""Those who need wait no longer, and those who never will get what they wait for, and why."""


class Room(Protocol):
    """A place to wait for one thing. `wake` is called, on any thread, when `admit` has something new to do."""

    wake: Callable[[], None]

    @property
    def waiting(self) -> bool: ...

    @property
    def busy(self) -> bool: ...

    def add(self, sequence: Sequence) -> None: ...

    def admit(self) -> Admitted: ...

    def release(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


class Lobby:
    """All the rooms that an engine has. `add`, `admit` and `release` are for the engine's thread."""

    def __init__(self, guidance: Guidance | None, adapters: Adapters | None, wake: Callable[[], None]) -> None:
        self._guidance = guidance
        self.adapters = adapters
        self._rooms: list[Room] = [room for room in (guidance, adapters) if room is not None]
        for room in self._rooms:
            room.wake = wake

    def adapter(self, name: str) -> Adapters:
        """The adapters, if `name` can be one of them. Raises NotFoundError."""
        if self.adapters is None:
            raise NotFoundError(f"The model '{name}' does not exist", param="model", code="model_not_found")
        return self.adapters

    def check(self, sequence: Sequence) -> None:
        """Raise NotFoundError or UnsupportedError for a request that waits for what this engine does not have."""
        request = sequence.request
        if request.adapter is not None:
            self.adapter(request.adapter).check(request.adapter)
        if request.sampling.guide is not None and self._guidance is None:
            raise UnsupportedError("this engine has no tokenizer to guide with", param="guided_decoding_guide_type")

    @property
    def waiting(self) -> bool:
        """Whether anyone is in here."""
        return any(room.waiting for room in self._rooms)

    @property
    def busy(self) -> bool:
        """Whether `admit` has something new to do."""
        return any(room.busy for room in self._rooms)

    def add(self, sequence: Sequence) -> bool:
        """Let a request wait for what it needs; False if that is nothing."""
        room = next(self._needed(sequence), None)
        if room is not None:
            room.add(sequence)
        return room is not None

    def admit(self) -> Admitted:
        """Those who have all that they need, and those who never will."""
        admitted: list[Sequence] = []
        failed: list[tuple[Sequence, ConchError]] = []
        for room in self._rooms:
            if not (room.busy or room.waiting):
                continue
            ready, lost = room.admit()
            failed += lost
            for sequence in ready:
                following = next(self._needed(sequence, after=room), None)
                if following is None:
                    admitted.append(sequence)
                else:
                    following.add(sequence)
        return admitted, failed

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended, wherever it was."""
        for room in self._needed(sequence):
            room.release(sequence)

    def close(self) -> None:
        for room in self._rooms:
            room.close()

    def _needed(self, sequence: Sequence, after: Room | None = None) -> Iterator[Room]:
        """The rooms that a sequence has to pass, in their order; only those behind `after`."""
        request = sequence.request
        if self._guidance is not None and request.sampling.guide is not None and after is None:
            yield self._guidance
        if self.adapters is not None and request.adapter is not None and after is not self.adapters:
            yield self.adapters
