"""What an error of Triton's says of the model behind it."""

from __future__ import annotations

import re

_DEAD = re.compile(r"not healthy|not ready|unavailable|no available instances", re.IGNORECASE)


def means_dead(error: str) -> bool:
    """Whether a request that was answered with `error` found no engine; other errors are an engine's own."""
    return _DEAD.search(error) is not None
