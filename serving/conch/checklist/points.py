"""One point of the checklist. Knows nothing of how it is found out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["pre-deployment", "deployment", "operation"]
State = Literal["done", "failed", "open", "person"]
PHASES: tuple[Phase, ...] = ("pre-deployment", "deployment", "operation")


@dataclass(frozen=True)
class Point:
    """`state`: done and failed were seen; open could be, were it asked for as `fix` says; person: for a person."""

    id: str
    state: State
    what: str
    """What was seen, or what a person does."""
    fix: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seen(id: str, ok: bool, what: str, fix: str | None = None) -> Point:
    """Done or failed; the fix is told only of what failed."""
    return Point(id, "done" if ok else "failed", what, None if ok else fix)


def person(id: str, what: str) -> Point:
    return Point(id, "person", what)


def unseen(id: str, what: str, fix: str) -> Point:
    return Point(id, "open", what, fix)
