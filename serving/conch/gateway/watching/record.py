"""What an HTTP request came to, told once it is over: to the access log, to traces, to counters.

The layer is outside all others, so that it sees what they refuse, too; it touches no message on its way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from conch.gateway.exchange import Exchange

GONE = 499
"""The status of a request whose client went away before it had one."""


@dataclass(frozen=True)
class Record:
    """Times are of `time.perf_counter`."""

    scope: Scope
    began_at: float
    ended_at: float

    @property
    def state(self) -> dict[str, Any]:
        """What was found out on the way."""
        state: dict[str, Any] = self.scope.get("state", {})
        return state

    @property
    def request_id(self) -> str:
        return str(self.state.get("request_id", ""))

    @property
    def status(self) -> int:
        return int(self.state.get("status", GONE))

    @property
    def route(self) -> str | None:
        """As `/v1/models/{name}`; None: there is no such."""
        return getattr(self.scope.get("route"), "path", None)

    @property
    def exchange(self) -> Exchange | None:
        """None: it was refused before its model was found, or asks for no answer of one."""
        return self.state.get("exchange")

    @property
    def key_id(self) -> str | None:
        key = self.state.get("key")
        return str(key.id) if key is not None else None

    @property
    def is_a_look(self) -> bool:
        """It only looked at how the gateway does."""
        return (self.route or "").startswith(("/health", "/metrics", "/dashboard"))


def servers_of(exchange: Exchange) -> list[str]:
    """The servers that were asked, as `host:port` or by their URLs."""
    return list(dict.fromkeys(answer.server for answer in exchange.answers))


class Telling:
    """The layer. A teller that fails would end nobody's request: it is over."""

    def __init__(self, app: ASGIApp, tellers: Sequence[Callable[[Record], None]]) -> None:
        self.app = app
        self.tellers = tellers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began_at = time.perf_counter()
        try:
            await self.app(scope, receive, send)
        finally:
            record = Record(scope, began_at, time.perf_counter())
            for tell in self.tellers:
                tell(record)
