"""Stop strings across token borders. Pure; knows nothing of tokens or HTTP."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Lets text through, but never a character of a stop string.

    Only text that may still become a stop string is held back. The answer ends where the first stop string to
    be complete begins (of those that end with the same character, the longest), however the text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take new text; return what may be sent. After a match, nothing more comes."""
        if self.matched is not None:
            return ""
        text = self._held + text
        self._held = ""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            return text[:start]
        start = min(possible_start(text, stop) for stop in self._stops)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """The answer has ended: what was held back is text after all."""
        text, self._held = self._held, ""
        return text


def possible_start(text: str, stop: str) -> int:
    """Where the longest beginning of `stop` that ends `text` starts; len(text) if there is none."""
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return at
        at += 1
    return len(text)
