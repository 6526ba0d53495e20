"""Which requests must end before their answer does: those past their deadline, those whose caller has left.

Asked between two steps, so both questions are cheap. Knows nothing of schedules: it names sequences, no more.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable

from conch.engine.sequence import Sequence

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.02
POLL_BUDGET_S = 0.0002
"""`is_cancelled` may be a round trip to another process: after this time the rest waits for its turn."""


class Watch:
    def __init__(self) -> None:
        self._deadlines: dict[Sequence, float] = {}
        self._next_deadline = math.inf
        self._callers: deque[tuple[Sequence, Callable[[], bool]]] = deque()
        self._next_poll = 0.0

    def add(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.deadline is not None:
            self._deadlines[sequence] = request.deadline
            self._next_deadline = min(self._next_deadline, request.deadline)
        if request.is_cancelled is not None:
            self._callers.append((sequence, request.is_cancelled))

    def forget(self, sequence: Sequence) -> None:
        """A finished sequence; its place among the callers goes when its turn comes."""
        self._deadlines.pop(sequence, None)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences past their deadline; `now` is `time.monotonic()`."""
        if now < self._next_deadline:
            return []
        late = [sequence for sequence, deadline in self._deadlines.items() if deadline <= now]
        waiting = (deadline for deadline in self._deadlines.values() if deadline > now)
        self._next_deadline = min(waiting, default=math.inf)
        return late

    def abandoned(self, now: float) -> list[Sequence]:
        """Sequences whose caller says that it has left, asked in turn."""
        if not self._callers or now < self._next_poll:
            return []
        left = []
        for _ in range(len(self._callers)):
            sequence, is_cancelled = self._callers.popleft()
            if sequence.finished:
                continue
            if _has_left(sequence, is_cancelled):
                left.append(sequence)
                continue
            self._callers.append((sequence, is_cancelled))
            if time.monotonic() > now + POLL_BUDGET_S:
                break
        self._next_poll = now + POLL_EVERY_S
        return left


def _has_left(sequence: Sequence, is_cancelled: Callable[[], bool]) -> bool:
    try:
        return is_cancelled()
    except Exception:
        log.exception("is_cancelled of request %s failed: it is cancelled", sequence.request.id)
        return True
