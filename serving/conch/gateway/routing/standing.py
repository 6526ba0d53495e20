"""How a server stands: what it has to do for this gateway, and whether it may be asked. Pure; the caller has the clock.

A server that fails several requests in a row, or a probe, is left alone. Only a probe that succeeds brings it back, and
the probes come at longer intervals as long as they fail.
"""

from __future__ import annotations

from dataclasses import dataclass

FAILURES = 3
"""Requests in a row."""
_LONGEST_HOLD_S = 15.0


@dataclass
class Standing:
    tokens: int = 0
    """That it has still to compute, as far as can be told."""
    running: int = 0
    """Requests."""
    up: bool = True
    requests: int = 0
    failures: int = 0
    """Of all requests."""
    retries: int = 0
    """Requests that went on to another server."""
    picked_at: int = 0
    """When it was chosen last, as a number that grows."""
    probe_at: float = 0.0
    """When it is probed next."""
    _in_a_row: int = 0
    _held: int = 0
    """Probes that have failed in a row."""

    def took(self, tokens: int) -> None:
        self.running += 1
        self.requests += 1
        self.tokens += tokens

    def gave_back(self, tokens: int) -> None:
        self.running -= 1
        self.tokens -= tokens

    def served(self) -> None:
        """A request has had a token."""
        self._in_a_row = 0

    def failed(self, now: float) -> None:
        """A request has failed, and it was not the request's fault."""
        self.failures += 1
        self._in_a_row += 1
        if self.up and self._in_a_row >= FAILURES:
            self.up, self.probe_at = False, now

    def probed(self, alive: bool, now: float, interval: float) -> None:
        """`interval`: seconds between the probes of a server that is up."""
        self.up = alive
        self._held = 0 if alive else self._held + 1
        if alive:
            self._in_a_row = 0
        self.probe_at = now + min(interval * 2 ** max(0, self._held - 1), max(interval, _LONGEST_HOLD_S))
