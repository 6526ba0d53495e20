"""Whose work the busy time of a model's engines was: a clock that all requests share. Pure arithmetic.

An engine is busy while at least one request runs. At each instant its time is shared by the requests that run then, in
proportion to the answers that each has in the making; a request's share is prefill until its first token and decode
after it. The shares add up to the busy time. Of several engines as many are taken to be busy as there are answers.
"""

from __future__ import annotations

from dataclasses import dataclass


class ShareClock:
    """Times are any that only go forward, in seconds. Each event costs the same, however many requests run.

    `_each` is what one answer would have got that had been there from the start: the difference of two of its readings
    is the share of an answer between them.
    """

    def __init__(self, engines: int = 1) -> None:
        self.busy_seconds = 0.0
        """Of all engines."""
        self._engines = engines
        self._answers = 0
        self._each = 0.0
        self._at = 0.0

    def start(self, now: float, answers: int = 1) -> Share:
        """A request begins to run, for so many answers."""
        self._advance(now)
        self._answers += answers
        return Share(self, answers, self._each)

    def each(self, now: float) -> float:
        self._advance(now)
        return self._each

    def leave(self, answers: int) -> None:
        self._answers -= answers

    def resize(self, engines: int, now: float) -> None:
        """There are so many engines from now on."""
        self._advance(now)
        self._engines = engines

    def _advance(self, now: float) -> None:
        if self._answers and now > self._at:
            busy = (now - self._at) * min(self._engines, self._answers)
            self.busy_seconds += busy
            self._each += busy / self._answers
        self._at = max(now, self._at)


@dataclass
class Share:
    """One request's part of the busy time."""

    clock: ShareClock
    answers: int
    began: float
    first: float | None = None

    def first_token(self, now: float) -> None:
        self.first = self.clock.each(now)

    def end(self, now: float) -> tuple[float, float]:
        """Seconds of prefill and of decode. Call it once."""
        ended = self.clock.each(now)
        self.clock.leave(self.answers)
        first = ended if self.first is None else self.first
        return (first - self.began) * self.answers, (ended - first) * self.answers
