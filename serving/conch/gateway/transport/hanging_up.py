"""How a connection is closed that its client still writes to: the answer first, then a while of not listening.

A socket closed over unread bytes resets the connection, and a reset may overtake the answer. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

_SECONDS = 2.0


class HangingUp:
    """A transport whose `close` ends what is written, and what is read after two seconds or with the client's own end.

    Nothing else of it is different. `more_may_come`: whether the client may still be writing.
    """

    def __init__(self, transport: asyncio.Transport, more_may_come: Callable[[], bool]) -> None:
        self._transport = transport
        self._more_may_come = more_may_come
        self._closing = False
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not (self._more_may_come() and self._transport.can_write_eof()):
            return self._transport.close()
        self._closing = True
        self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_SECONDS, self._transport.close)
