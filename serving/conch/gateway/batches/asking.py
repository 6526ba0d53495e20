"""One line of a batch through the endpoint that answers live requests: the same checks, permissions and limits.

Knows nothing of batches. What is only busy, or broken for the moment, is asked again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from conch.gateway import errors
from conch.gateway.transport.inner import inner_request
from conch.gateway.transport.lifecycle import Lifecycle
from conch_build.errors import ConchError

Handler = Callable[[Request], Awaitable[Response]]
KeyOf = Callable[[str], Awaitable[Any]]
"""From the id of a key to what a request that brings it carries as `state.key`. Raises ConchError for one that is no
longer good."""

_BUSY = (429, 503)
"""Asked again as long as the batch has time."""
_BROKEN = (499, 500, 502, 504)
_TRIES = 3
"""Of a line that breaks something."""
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Answered:
    request_id: str
    status: int
    body: dict[str, Any]


class Asker:
    def __init__(self, handlers: Mapping[str, Handler], lifecycle: Lifecycle, key_of: KeyOf) -> None:
        """`handlers`: by the path of their endpoint."""
        self._handlers = handlers
        self._lifecycle = lifecycle
        self._key_of = key_of

    async def ask(self, endpoint: str, body: dict[str, Any], owner: str, wanted: Callable[[], bool]) -> Answered | None:
        """The answer that the line gets in the end; None once it is not `wanted` any more."""
        raw = json.dumps({**body, "service_tier": "flex"}).encode()
        waits, broken = 0, 0
        while wanted():
            request = inner_request(endpoint, raw)
            with self._lifecycle.running():
                response = await self._once(request, owner)
            status = response.status_code
            if status in _BROKEN and not _never_began(request, status):
                broken += 1
            if status not in (*_BUSY, *_BROKEN) or broken >= _TRIES or _is_final(response):
                return Answered(request.state.request_id, status, json.loads(bytes(response.body)))
            await _wait(response, waits, wanted)
            waits += 1
        return None

    async def _once(self, request: Request, owner: str) -> Response:
        try:
            request.state.key = await self._key_of(owner)
            return await self._handlers[request.scope["path"]](request)
        except ConchError as error:
            return errors.answer_to(error)
        except Exception as error:  # a fault of our own, as the outermost layer has it for live requests
            return errors.internal_error(error, request.state.request_id)


def _never_began(request: Request, status: int) -> bool:
    """It waited out its time behind live requests, which says nothing of itself."""
    exchange = getattr(request.state, "exchange", None)
    return status == 504 and exchange is not None and exchange.started_at is None


def _is_final(response: Response) -> bool:
    """No time will mend it."""
    return response.headers.get("x-should-retry") == "false"


async def _wait(response: Response, waits: int, wanted: Callable[[], bool]) -> None:
    """As long as the refusal says, or longer each time."""
    told = response.headers.get("retry-after-ms")
    longest = min(float(told) / 1000 if told else 0.25 * 2 ** min(waits, 10), _LONGEST_WAIT_S)
    left = longest * random.uniform(0.75, 1.25)
    while left > 0 and wanted():
        await asyncio.sleep(min(left, 0.5))
        left -= 0.5
