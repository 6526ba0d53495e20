"""Where a JSON value ends in a text that still grows. Pure."""

from __future__ import annotations

_OPEN, _CLOSE = "{[", "}]"


class JsonEnd:
    """Reads a value from its first character on; what is wrong inside it does not matter."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False
        self._bare = False

    def find(self, text: str) -> int | None:
        """How much of new text still belongs to the value; None: all of it, and more is to come."""
        for at, character in enumerate(text):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_text = False
                    if not self._depth:
                        return at + 1
            elif character == '"':
                self._in_text = True
            elif character in _OPEN:
                self._depth += 1
            elif not self._depth and self._bare and (character in ",}]" or character.isspace()):
                return at
            elif character in _CLOSE:
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
            else:
                self._bare = not self._depth
        return None
