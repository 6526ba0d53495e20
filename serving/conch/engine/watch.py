"""Which requests must end before their answer does: those past their deadline, those whose caller has left.

Asked between two steps, so both questions are cheap. Knows nothing of schedules: it names requests, no more.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from conch.engine.request import Request

log = logging.getLogger(__name__)

POLL_EVERY_S = 0.02
POLL_BUDGET_S = 0.0002
"""`is_cancelled` may be a round trip to another process: after this time the rest waits for its turn."""


class Watch:
    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}
        self._next_deadline = math.inf
        self._callers: OrderedDict[str, Callable[[], bool]] = OrderedDict()  # whose turn is next comes first
        self._next_poll = 0.0

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            self._deadlines[request.id] = request.deadline
            self._next_deadline = min(self._next_deadline, request.deadline)
        if request.is_cancelled is not None:
            self._callers[request.id] = request.is_cancelled

    def forget(self, request: Request) -> None:
        """A finished request."""
        self._deadlines.pop(request.id, None)
        self._callers.pop(request.id, None)

    def expired(self, now: float) -> list[str]:
        """Ids of requests past their deadline; `now` is `time.monotonic()`."""
        if now < self._next_deadline:
            return []
        late = [request for request, deadline in self._deadlines.items() if deadline <= now]
        waiting = (deadline for deadline in self._deadlines.values() if deadline > now)
        self._next_deadline = min(waiting, default=math.inf)
        return late

    def abandoned(self, now: float) -> list[str]:
        """Ids of requests whose caller says that it has left, asked in turn."""
        if not self._callers or now < self._next_poll:
            return []
        left = []
        for request in list(self._callers):
            if _has_left(request, self._callers[request]):
                left.append(request)
            self._callers.move_to_end(request)
            if time.monotonic() > now + POLL_BUDGET_S:
                break
        self._next_poll = now + POLL_EVERY_S
        return left


def _has_left(request: str, is_cancelled: Callable[[], bool]) -> bool:
    try:
        return is_cancelled()
    except Exception:
        log.exception("is_cancelled of request %s failed: it is cancelled", request)
        return True
