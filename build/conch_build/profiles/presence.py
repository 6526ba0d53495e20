"""Which release has a thing, by the sources that were read: A and B lie on both sides of 1.2.1, C comes after engines.

    A   1.2.0rc1-rc2
    B   the first release candidates of 1.3.0
    C   after 1.3.0rc20, the last one with engines

What both A and B have is in 1.2.1. What only one of them has may be, and nobody can say without the release: it counts
as absent. Tables write the letters; those that are in all three write none.
"""

from __future__ import annotations

EVERYWHERE = "ABC"

NEIGHBOURS, LATER = "AB", "C"

AROUND = {NEIGHBOURS: "AB", LATER: "BC"}
"""Sources that stand for a release -> those on both sides of it: what all of them have is there without a doubt."""

SNAPSHOTS = {"1.2.1": NEIGHBOURS, "1.3.0rc21": LATER}
"""Profile -> the sources that stand for it."""


def exists(seen: str, snapshots: str) -> bool:
    """Whether a thing that the sources `seen` have is in the release for which `snapshots` stand."""
    return set(snapshots) <= set(seen)


def holders(seen: str) -> list[str]:
    """The profiles that have it."""
    return [name for name, snapshots in SNAPSHOTS.items() if exists(seen, snapshots)]


def absence(seen: str, snapshots: str) -> str:
    """Why a release has it not, as the end of a sentence."""
    others = holders(seen)
    doubt = "is not known to be in this release" if set(seen) & set(snapshots) else "is not in this release"
    return f"{doubt}; {', '.join(others)} has it" if others else doubt
