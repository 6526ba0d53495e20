"""Responses that conversations may go on from: in memory, the oldest forgotten first, gone with the process."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from conch_build.errors import NotFoundError


@dataclass(frozen=True)
class Stored:
    response: dict[str, Any]
    messages: list[dict[str, Any]]
    """The conversation up to and with the response, without instructions."""
    owner: str
    """The key that asked for it; no other one finds it."""


class ResponseStore:
    """`limit`: bytes that all of it may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._known: OrderedDict[str, tuple[Stored, int]] = OrderedDict()

    def add(self, stored: Stored) -> None:
        """One that is too large for the store is not kept."""
        size = len(json.dumps([stored.response, stored.messages]))
        if size > self._limit:
            return
        self._known[stored.response["id"]] = stored, size
        self._size += size
        while self._size > self._limit:
            self._size -= self._known.popitem(last=False)[1][1]

    def get(self, name: str, param: str, owner: str) -> Stored:
        """Raises NotFoundError."""
        if name not in self._known or self._known[name][0].owner != owner:
            text = f"No response '{name[:80]}' is remembered"
            raise NotFoundError(text, param=param, code="previous_response_not_found")
        return self._known[name][0]

    def remove(self, name: str, owner: str) -> None:
        """Raises NotFoundError."""
        self.get(name, "response_id", owner)
        self._size -= self._known.pop(name)[1]
