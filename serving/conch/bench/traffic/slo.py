"""What a request must keep to count as good. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from conch.bench.traffic.record import Record
from conch_build.errors import InputError
from conch_build.plan import Slo
from conch_build.units import parse_seconds

NAMES = ("ttft", "itl", "tpot", "e2e")
SHARE = 0.95
"""Of all requests that must be good: a plan's limits are those of the 95th percentile."""


@dataclass(frozen=True)
class Limits:
    """Name -> the most seconds; `itl` and `tpot` are both a request's mean time of a token after the first."""

    seconds: dict[str, float]

    def kept(self, record: Record) -> bool:
        if not record.answered:
            return False
        values = {"ttft": record.ttft, "itl": record.tpot, "tpot": record.tpot, "e2e": record.e2e}
        return all((values[name] or 0.0) <= limit for name, limit in self.seconds.items())


def parse_limits(text: str) -> Limits:
    """`ttft=100ms,itl=50ms`. Raises InputError for unknown names and for limits that nothing can keep."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in NAMES:
            raise InputError(f"{name!r} is no limit", where="--slo", fix=f"Limits: {', '.join(NAMES)}.")
        try:
            limits[name] = parse_seconds(value)
        except ValueError as error:
            raise InputError(str(error), where=f"--slo {name}") from None
        if limits[name] <= 0:
            raise InputError("no answer comes within no time", where=f"--slo {name}", fix="Give it more than 0.")
    least = limits.get("ttft", 0.0)
    if limits.get("e2e", least) < least:
        raise InputError("e2e is below ttft: the whole answer cannot come before its first token", where="--slo")
    return Limits(limits)


def limits_of(slo: Slo) -> Limits | None:
    """A plan's; None where it sets none."""
    given = {"ttft": slo.ttft_p95, "itl": slo.itl_p95}
    limits = {name: value for name, value in given.items() if value is not None}
    return Limits(limits) if limits else None
