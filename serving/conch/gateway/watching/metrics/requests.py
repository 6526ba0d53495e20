"""Counts exchanges: their parameters, what was cached, guessed, refused, failed or given up, what they cost."""

from __future__ import annotations

from conch.gateway.errors import kind_of
from conch.gateway.exchange import Exchange, Observer
from conch_build.errors import CancelledError


class Requests(Observer):
    def started(self, exchange: Exchange) -> None:
        exchange.metrics.param_n.observe(exchange.body.n)
        exchange.metrics.param_max_tokens.observe(exchange.max_tokens)

    async def ended(self, exchange: Exchange) -> None:
        metrics, answers = exchange.metrics, exchange.answers
        if isinstance(exchange.error, CancelledError):
            metrics.cancelled.inc()
        elif exchange.error is not None:
            metrics.failed(kind_of(exchange.error))
        if exchange.usd is not None:
            metrics.usd.inc(exchange.usd)
        if answers:
            cached = sum(answer.cached_tokens for answer in answers)
            metrics.cached_tokens.inc(cached)
            metrics.computed.observe(max(0, exchange.prompt_tokens - cached))
            metrics.longest.observe(max(answer.completion_tokens for answer in answers))
            metrics.draft_tokens.inc(sum(answer.draft_tokens for answer in answers))
            metrics.accepted_tokens.inc(sum(answer.accepted_tokens for answer in answers))
