"""What happens to a fleet from outside: servers are added and taken away with the load, and some die. Data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    """So many servers as keep each at `target` requests that run or wait, looked at every `every` seconds."""

    least: int
    most: int
    target: float
    start_seconds: float
    """Until a new one answers."""
    every: float = 5.0
    calm_seconds: float = 60.0
    """For which fewer must have been enough before one is taken away; it drains first."""

    def wanted(self, requests: int) -> int:
        return min(max(math.ceil(requests / self.target), self.least), self.most)


@dataclass(frozen=True)
class Failures:
    """Each server dies after a random time, `between_seconds` in the mean, and is back after `restart_seconds`."""

    between_seconds: float
    restart_seconds: float


@dataclass(frozen=True)
class Split:
    """Prompts are read by `prefill` servers of their own, and their keys and values travel to those that answer."""

    prefill: int
    link_bytes_s: float
    """Of each of them."""
    link_seconds: float = 0.001
    """Before the first byte."""
    local_tokens: int = 0
    """Prompts up to so many tokens do not travel."""
