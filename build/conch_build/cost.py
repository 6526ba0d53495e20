"""What tokens cost: the one model for measurements, sizing, advice and the gateway's ledger. Pure functions.

An engine is busy while at least one request runs. At each instant its time is shared equally by the requests that run
then; a request's share is prefill until its first token and decode after it. The shares add up to the busy time, so
that what requests are charged adds up to what the machine cost while it worked. Knows nothing of who measures; how many
replicas a traffic needs is in `queueing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from conch_build.errors import InputError

MILLION = 1_000_000
HOUR_SECONDS = 3600.0
MONTH_HOURS = 730.0
"""A twelfth of a year, as clouds count."""


@dataclass(frozen=True)
class Price:
    """Of `instances` machines that are paid by the hour and work together."""

    hourly_usd: float
    """Of one."""
    instances: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.hourly_usd < math.inf:
            raise InputError(f"a price an hour is a number from 0 on, not {self.hourly_usd}", where="hourly_usd")
        if self.instances < 1:
            raise InputError(f"there must be an instance to pay for, not {self.instances}", where="instances")

    def usd(self, busy_seconds: float) -> float:
        """What so many seconds by the clock cost, of all instances together."""
        return self.hourly_usd * self.instances * busy_seconds / HOUR_SECONDS

    @property
    def monthly_usd(self) -> float:
        """Kept for a month, busy or not."""
        return self.usd(MONTH_HOURS * HOUR_SECONDS)


@dataclass(frozen=True)
class Work:
    """What was done in busy time, as shared out above."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    computed_tokens: int = 0
    """Of prompts."""
    cached_tokens: int = 0
    """Of prompts, whose keys and values were there already."""
    generated_tokens: int = 0

    @property
    def busy_seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def tokens(self) -> int:
        return self.computed_tokens + self.cached_tokens + self.generated_tokens

    def __add__(self, other: Work) -> Work:
        return Work(
            self.prefill_seconds + other.prefill_seconds,
            self.decode_seconds + other.decode_seconds,
            self.computed_tokens + other.computed_tokens,
            self.cached_tokens + other.cached_tokens,
            self.generated_tokens + other.generated_tokens,
        )


@dataclass(frozen=True)
class TokenCost:
    """USD a million tokens of each kind; None where there were none of it."""

    usd: float
    """Of all the work."""
    computed: float | None
    cached: float | None
    generated: float | None
    any: float | None
    """Of tokens of every kind together."""

    def as_dict(self) -> dict[str, float | None]:
        return {
            "usd": self.usd,
            "usd_per_million_computed": self.computed,
            "usd_per_million_cached": self.cached,
            "usd_per_million_generated": self.generated,
            "usd_per_million_tokens": self.any,
        }


def usd_per_million(usd: float, tokens: int) -> float | None:
    """The price of a million tokens, if `tokens` cost `usd`; None for no tokens."""
    return usd / tokens * MILLION if tokens else None


def token_cost(price: Price, work: Work, *, cached_weight: float = 0.0) -> TokenCost:
    """The cost of each kind of token. Prompts bear the prefill time, answers the decode time.

    `cached_weight`: what a cached token of a prompt costs, as a share of a computed one. Reading it takes next to
    nothing, hence 0; a price list may want more. Tokens times costs is `usd` again, where each phase that took time has
    tokens.
    """
    prefill_usd, decode_usd = price.usd(work.prefill_seconds), price.usd(work.decode_seconds)
    weight = cached_weight if work.computed_tokens else 1.0  # prompts that were all cached bear their own time
    weighted = work.computed_tokens + weight * work.cached_tokens
    a_computed = prefill_usd / weighted * MILLION if weighted else 0.0
    usd = prefill_usd + decode_usd
    return TokenCost(
        usd=usd,
        computed=a_computed if work.computed_tokens else None,
        cached=weight * a_computed if work.cached_tokens else None,
        generated=usd_per_million(decode_usd, work.generated_tokens),
        any=usd_per_million(usd, work.tokens),
    )


def break_even_tokens_per_hour(price: Price, usd_a_million: float) -> float:
    """Tokens an hour from which machines that are always on cost less than buying at `usd_a_million`."""
    if not usd_a_million > 0:
        raise InputError(f"a price a million tokens is above 0, not {usd_a_million:g}", where="usd_a_million")
    return price.usd(HOUR_SECONDS) / usd_a_million * MILLION


def break_even_share(price: Price, usd_a_million: float, tokens_per_second: float) -> float:
    """Share of the time that the machines must be busy at `tokens_per_second` to cost as much as buying; above 1: they
    never do."""
    if not tokens_per_second > 0:
        raise InputError(f"a throughput is above 0, not {tokens_per_second:g}", where="tokens_per_second")
    return break_even_tokens_per_hour(price, usd_a_million) / (tokens_per_second * HOUR_SECONDS)


@dataclass(frozen=True)
class Return:
    """Of a change that costs something once and then makes each token cheaper (or not)."""

    saved_usd_a_month: float
    """Below 0: it makes tokens dearer."""
    payback_months: float | None
    """Until it has earned what it cost; None: never."""
    roi: float | None
    """Gain over the time looked at, for each USD that it cost; None where it cost nothing."""


def return_on(
    before_usd_a_million: float,
    after_usd_a_million: float,
    tokens_a_month: float,
    once_usd: float,
    *,
    months: float = 12,
) -> Return:
    """What a change is worth, as a quantization (its calibration and evaluation) or a draft model (its training):
    ROI = (saved a month x months - once) / once."""
    if min(before_usd_a_million, after_usd_a_million, tokens_a_month, once_usd) < 0 or not months > 0:
        raise InputError("prices, tokens and costs are not below 0, and there must be some time to look at")
    saved = (before_usd_a_million - after_usd_a_million) * tokens_a_month / MILLION
    return Return(
        saved_usd_a_month=saved,
        payback_months=0.0 if not once_usd else once_usd / saved if saved > 0 else None,
        roi=(saved * months - once_usd) / once_usd if once_usd else None,
    )
