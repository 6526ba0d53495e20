"""A text in parts, each cut at the best place before its length is over. Pure; knows nothing of tokens."""

from __future__ import annotations

_PLACES = ("\n\n", "\n", ". ", "! ", "? ", "; ", ", ", " ")
"""Where a text may be cut, the best first."""


def split(text: str, chars: int) -> list[str]:
    """Parts of at most `chars` characters, which joined are the text. A cut in the second half of a part's length at a
    better place is taken before a later one at a worse."""
    parts = []
    start = 0
    while len(text) - start > chars:
        end = start + chars
        least = start + chars // 2
        cuts = (text.rfind(place, max(start, least + 1 - len(place)), end) + len(place) for place in _PLACES)
        cut = next((cut for cut in cuts if least < cut <= end), end)
        parts.append(text[start:cut])
        start = cut
    return [*parts, text[start:]]
