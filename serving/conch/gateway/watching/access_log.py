"""The access log: one line of JSON a request, also for refused ones. No text of prompts, answers or queries.

Callers choose paths and request ids; JSON escapes what would start a line of its own. Looks at health, metrics and
the dashboard are left out unless they failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from conch.gateway.errors import kind_of
from conch.gateway.exchange import Exchange
from conch.gateway.watching.record import Record, servers_of

_LONGEST_PATH = 200


class AccessLog:
    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` takes a line without its end, and never waits."""
        self._write = write

    def __call__(self, record: Record) -> None:
        if not record.is_a_look or record.status >= 400:
            self._write(json.dumps(line_of(record)))


def line_of(record: Record) -> dict[str, Any]:
    """The line's fields. Absent from it is what does not apply, as the tokens of a refused request."""
    seconds = record.ended_at - record.began_at
    client = record.scope.get("client")
    exchange = record.exchange
    fields = {
        "time": datetime.fromtimestamp(time.time() - seconds, timezone.utc).isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "client": client[0] if client else None,
        "key": record.key_id,
        "method": record.scope["method"],
        "path": record.scope["path"][:_LONGEST_PATH],
        "status": record.status,
        "e2e_seconds": round(seconds, 6),
        **(_told(exchange) if exchange is not None else {}),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _told(exchange: Exchange) -> dict[str, Any]:
    answers = exchange.answers
    finishes = [answer.finish_reason for answer in answers if answer.finish_reason is not None]
    return {
        "endpoint": exchange.endpoint,
        "model": exchange.model,
        "variant": exchange.chosen.variant if exchange.chosen else None,
        "stream": exchange.streaming,
        "prompt_tokens": exchange.prompt_tokens,
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
        "accepted_tokens": sum(answer.accepted_tokens for answer in answers),
        "queue_seconds": _between(exchange.began_at, exchange.started_at),
        "ttft_seconds": _between(exchange.began_at, exchange.first_token_at) if exchange.streaming else None,
        "upstream": servers_of(exchange) or None,
        "finish": finishes or None,
        "error": kind_of(exchange.error) if exchange.error else None,
        "usd": exchange.usd,
    }


def _between(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 6)
