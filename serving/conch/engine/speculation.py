"""Speculation: guess the next tokens of every decoding sequence, and let the target verify them in one step.

A guess only saves time. Each token is chosen from the target's own row as it would be without speculation, with
the same noise, penalties and guides; a guessed token counts when it is the chosen one. Answers are therefore the
same, token for token, sampled ones too: this is rejection sampling (Leviathan, Kalman and Matias, "Fast inference
from transformers via speculative decoding", 2023) with the draft's draws coupled to the target's by their noise.

`Speculation` asks a drafter for as many guesses as pay (`Payoff`), none if none do. Knows nothing of how steps are
computed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Many
from typing import Protocol

from conch.engine.payoff import Payoff
from conch.engine.scheduler import Batch, Scheduler
from conch.engine.sequence import Sequence

log = logging.getLogger(__name__)


class Drafter(Protocol):
    """Guesses tokens."""

    def guess(self, sequences: Many[Sequence], rooms: Many[int]) -> None:
        """Set the `draft` of each sequence, to at most so many tokens as it has room for."""

    def follow(self, batch: Batch) -> None:
        """The target computes this step: keep up with the prompts in it."""


class Speculation:
    """Decides before each step whether to guess, and measures after it what that was worth."""

    def __init__(self, drafter: Drafter, max_draft_len: int) -> None:
        self._drafter = drafter
        self._payoff = Payoff(max_draft_len)
        self._length = 0  # of the guesses of this step
        self.seconds = 0.0
        """Spent guessing."""

    @property
    def active(self) -> bool:
        return self._payoff.best > 0

    def guess(self, scheduler: Scheduler, decoding: list[Sequence]) -> None:
        """Give the decoding sequences their drafts, if that is worth its time."""
        started = time.monotonic()
        was = self._payoff.best
        self._length = self._payoff.length(len(decoding)) if decoding else 0
        if was != self._payoff.best:
            log.info("speculation guesses %s tokens now: %s", self._payoff.best or "no", self._payoff)
        if self._length:
            self._drafter.guess(decoding, scheduler.room_for_drafts(decoding, self._length))
            self.seconds += time.monotonic() - started

    def follow(self, batch: Batch) -> None:
        """Let the draft compute the prompts of a step, too."""
        started = time.monotonic()
        self._drafter.follow(batch)
        self.seconds += time.monotonic() - started

    def learn(self, sequences: int, tokens: int, seconds: float) -> None:
        """A step without prompts gave `tokens` to `sequences` in `seconds`, guessing included."""
        self._payoff.record(sequences, self._length, tokens, seconds)
