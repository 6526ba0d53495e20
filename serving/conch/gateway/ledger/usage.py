"""What the ledger adds up to: tokens, busy time and cost by key, model, adapter, experiment or day."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, case, func, select

from conch.gateway.keys.grants import all_keys
from conch.gateway.ledger.writing import ledger
from conch_build.cost import HOUR_SECONDS, Price, TokenCost, Work, token_cost

GROUPS = ("key", "model", "adapter", "experiment", "variant", "day")
_DAY_MS = 86_400_000
_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "draft_tokens",
    "accepted_tokens",
    "prefill_seconds",
    "decode_seconds",
)


@dataclass(frozen=True)
class Usage:
    """Of one group. Cached tokens are part of the prompt's, reasoning of the completion's; draft tokens were guessed
    for completions, and of them so many accepted."""

    group: str
    """The empty one: without a key, an adapter or an experiment."""
    requests: int
    failed: int
    """That got an error; the client's leaving is none."""
    unpriced: int
    """Requests when there was no price; `cost.usd` leaves them out."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    draft_tokens: int
    accepted_tokens: int
    prefill_seconds: float
    decode_seconds: float
    usd: float | None
    """None: there was never a price."""
    cost: TokenCost | None
    """Of a million tokens, at the price that the priced requests had on average."""

    def as_dict(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("usd", "cost")}
        rates = {name: value for name, value in self.cost.as_dict().items() if name != "usd"} if self.cost else {}
        return {**plain, "usd": self.usd, **{name: rates.get(name) for name in RATES}}


RATES = tuple(name for name in TokenCost(0, None, None, None, None).as_dict() if name != "usd")
COLUMNS = tuple(field.name for field in fields(Usage) if field.name != "cost") + RATES
"""Of `as_dict`."""


def usage(connection: Connection, by: str, since: float | None = None, until: float | None = None) -> list[Usage]:
    """One for each of a group that is one of `GROUPS`, the dearest first, days in order. Times: seconds since 1970."""
    group = ledger.c.at_ms // _DAY_MS if by == "day" else ledger.c[by]
    priced = ledger.c.usd.is_not(None)
    busy = ledger.c.prefill_seconds + ledger.c.decode_seconds
    query = select(
        group.label("group"),
        func.count().label("requests"),
        _counted((ledger.c.status >= 400) & (ledger.c.finish != "cancelled")).label("failed"),
        _counted(~priced).label("unpriced"),
        *(func.sum(ledger.c[name]).label(name) for name in _SUMS),
        func.sum(ledger.c.usd).label("usd"),
        func.sum(case((priced, busy), else_=0.0)).label("priced_seconds"),
    ).group_by(group)
    if since is not None:
        query = query.where(ledger.c.at_ms >= int(since * 1000))
    if until is not None:
        query = query.where(ledger.c.at_ms < int(until * 1000))
    found = [dict(row) for row in connection.execute(query).mappings()]
    names = {key.id: key.grant.name for key in all_keys(connection)} if by == "key" else {}
    rows = [_usage(row, _named(row["group"], by, names)) for row in found]
    if by == "day":
        return sorted(rows, key=lambda row: row.group)
    return sorted(rows, key=lambda row: (-row.prefill_seconds - row.decode_seconds, row.group))


def _counted(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0), type_=Integer)


def _named(group: Any, by: str, names: dict[str, str]) -> str:
    if by == "day":
        return datetime.fromtimestamp(group * 86400, timezone.utc).date().isoformat()
    return names.get(group, group or "")


def _usage(row: dict[str, Any], group: str) -> Usage:
    priced_seconds, usd = row.pop("priced_seconds"), row["usd"]
    work = Work(
        row["prefill_seconds"],
        row["decode_seconds"],
        row["prompt_tokens"] - row["cached_tokens"],
        row["cached_tokens"],
        row["completion_tokens"],
    )
    cost = token_cost(Price(usd * HOUR_SECONDS / priced_seconds), work) if usd and priced_seconds else None
    return Usage(**{**row, "group": group}, cost=cost)
