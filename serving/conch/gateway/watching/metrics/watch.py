"""One answer's clock: what of the metrics is known token by token. Knows nothing of what an answer says."""

from __future__ import annotations

import time
from collections.abc import Callable

from conch.gateway.watching.metrics.families import ModelMetrics


class Watch:
    """Told of an answer's tokens and of its end, it keeps the metrics.

    `began_at`: when the request came, by `time.perf_counter`; the engine is asked now.
    """

    __slots__ = (
        "_began_at",
        "_first",
        "_last",
        "_metrics",
        "_on_first",
        "_start",
        "_streaming",
        "_tokens",
        "prompt_tokens",
    )

    def __init__(
        self,
        metrics: ModelMetrics,
        prompt_tokens: int,
        *,
        streaming: bool,
        began_at: float,
        on_first: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._on_first = on_first
        self.prompt_tokens = prompt_tokens
        """May be told until the end."""
        self._streaming = streaming
        self._began_at = began_at
        self._tokens = 0
        self._start = self._first = self._last = time.perf_counter()

    def tokens(self, count: int) -> None:
        """That many tokens have come at once."""
        now = time.perf_counter()
        if not self._tokens:
            self._first = now
            self._on_first()
            if self._streaming:
                self._metrics.first_token.observe(now - self._began_at)
        elif self._streaming:
            for _ in range(count):
                self._metrics.between_tokens.observe((now - self._last) / count)
        self._last = now
        self._tokens += count

    def end(self, reason: str) -> None:
        """The answer has ended, for one of `REASONS`."""
        metrics, now = self._metrics, time.perf_counter()
        metrics.whole.observe(now - self._began_at)
        metrics.inference.observe(now - self._start)
        if self._streaming and self._tokens:
            metrics.prefill.observe(self._first - self._start)
            metrics.decode.observe(now - self._first)
            if self._tokens > 1:
                metrics.per_token.observe((self._last - self._first) / (self._tokens - 1))
        metrics.prompt_size.observe(self.prompt_tokens)
        metrics.answer_size.observe(self._tokens)
        metrics.prompt_tokens.inc(self.prompt_tokens)
        metrics.generated_tokens.inc(self._tokens)
        metrics.ended[reason].inc()
