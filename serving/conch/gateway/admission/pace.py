"""How fast a line moves, and how much requests take, as far as has been seen. Pure."""

from __future__ import annotations

import math

_KEPT = 0.95
"""Of what was known, with each new measurement: the last twenty count most."""


class Pace:
    """Tokens a second that leave the engine while others wait."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """Somebody waits."""
        if self._since is None:
            self._since = now

    def pause(self) -> None:
        """Nobody waits: how fast requests end says no more how fast they could."""
        self._since = None

    def left(self, tokens: int, now: float) -> None:
        """A request has ended."""
        if self._since is not None:
            self._tokens = _KEPT * self._tokens + tokens
            self._seconds = _KEPT * self._seconds + now - self._since
            self._since = now

    def seconds_for(self, tokens: float) -> float | None:
        """Until so many have left; None as long as nothing was measured."""
        return tokens * self._seconds / self._tokens if self._tokens else None


class Usual:
    """Most answers end long before the most that they may have, and most prompts begin like others, whose KV cache
    they share: what is reckoned for a request decides how many fit."""

    def __init__(self) -> None:
        self._answer: float | None = None
        self._new = 1.0

    def saw(self, prompt: int, cached: int, answer: float) -> None:
        """A request has ended: `cached` of the tokens of its prompts were there, its answers have `answer` each."""
        self._answer = answer if self._answer is None else _KEPT * self._answer + (1 - _KEPT) * answer
        if prompt:  # of servers that tokenize themselves it is not known
            self._new = _KEPT * self._new + (1 - _KEPT) * (1 - cached / prompt)

    def reckoned(self, prompt: int, most: int, answers: int) -> int:
        """Tokens of a request whose `answers` may have `most` together: all, or twice what is usual."""
        if self._answer is not None:
            most = min(most, math.ceil(2 * self._answer * answers))
        return math.ceil(prompt * self._new) + most
