"""How far a batch is, how fast it goes and what it has cost so far, on stderr. Knows nothing of rows."""

from __future__ import annotations

from typing import TextIO

from conch.batch.checkpoint import Totals
from conch_build.console import Progress
from conch_build.cost import Price


class BatchProgress(Progress):
    def __init__(self, total: int, before: Totals, price: Price | None, *, stream: TextIO | None = None) -> None:
        """`total`: rows; `before`: what earlier runs did, which says nothing of this one's pace."""
        super().__init__("batch", total - before.rows, stream=stream)
        self._before = before
        self._now = before
        self._price = price

    def show(self, totals: Totals) -> None:
        self._now = totals
        self.advance(totals.rows - self._before.rows - self.done)

    def _counts(self) -> str:
        now, before = self._now, self._before
        seconds = now.seconds - before.seconds
        tokens = now.completion_tokens - before.completion_tokens
        parts = [super()._counts()]
        if seconds > 0:
            parts.append(f"{tokens / seconds:.0f} tok/s")
        if self._price is not None:
            parts.append(f"${self._price.usd(now.seconds):.4f}")
        if now.failed:
            parts.append(f"{now.failed} failed")
        return ", ".join(parts)
