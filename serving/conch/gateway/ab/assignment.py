"""Which variant a caller gets: by weight, and always the same one for the same caller.

A caller is a point on a line that the weights divide. Pure arithmetic; knows nothing of models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

_POINTS = 1 << 64


def assigned(experiment: str, caller: str, weights: Mapping[str, float]) -> str:
    """The variant of `caller`. Weights are shares of any sum; one of 0 gets nobody.

    The first variant's part of the line starts at 0 and each other's where the one before ends: when the last of two
    grows, callers move to it and none away from it. Raises ValueError when no weight is above 0.
    """
    total = sum(weights.values())
    if total <= 0:
        raise ValueError("every weight is 0")
    place = point(experiment, caller) * total
    reached, last = 0.0, ""
    for name, weight in weights.items():
        if weight <= 0:
            continue
        reached, last = reached + weight, name
        if place < reached:
            break
    return last


def point(experiment: str, caller: str) -> float:
    """Where a caller is, from 0 to below 1: even over callers, and another place in every experiment."""
    digest = hashlib.blake2b(f"{experiment}\0{caller}".encode(), digest_size=8).digest()
    return min(int.from_bytes(digest, "big") / _POINTS, 1 - 2**-53)
