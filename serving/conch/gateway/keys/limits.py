"""What a key may have a minute and at once: in this process, or in all gateways together where they share a Redis.

A bucket holds a minute's worth and fills evenly. Tokens are charged as prompt and the longest answer when a request is
let in, and settled when it has ended; one that is refused, by whomever, gets all of it back. Knows nothing of how keys
are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from conch.gateway.errors import RateLimited
from conch.gateway.exchange import Exchange, Observer
from conch.gateway.keys.grants import Key
from conch.gateway.sharing.limits import SharedLimits, Taken
from conch_build.errors import CancelledError, DeadlineError

_MINUTE = 60.0
_PARALLEL_RETRY_SECONDS = 1.0


@dataclass
class Bucket:
    """`level` of `limit` as it was at `at`, by `time.monotonic`."""

    limit: int
    level: float
    at: float

    def fill(self, limit: int, now: float) -> None:
        self.level += (now - self.at) * limit / _MINUTE
        self.level, self.limit, self.at = min(self.level, limit), limit, now

    def seconds_until(self, amount: float) -> float:
        return max(0.0, (amount - self.level) * _MINUTE / self.limit)


@dataclass(frozen=True)
class _Charge:
    """What an exchange has taken."""

    key: Key
    tokens: int
    shared: bool = False
    """In the books of all gateways."""


class KeyLimits(Observer):
    def __init__(self, registry: CollectorRegistry, shared: SharedLimits | None = None) -> None:
        self._shared = shared
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}
        self._running: dict[str, int] = {}
        self._charges: dict[Exchange, _Charge] = {}
        self._refused = Counter(
            "conch:key_refused_requests", "Requests over a limit of their key", ["key", "limit"], registry=registry
        )
        registry.register(_Gauges(self._running))

    def begun(self, exchange: Exchange) -> None:
        """What would be refused is refused before its prompt is read. Raises RateLimited."""
        key = key_of(exchange.request)
        if key is not None and self._shared is None:  # what others gave back is known to them alone
            self._check(key, 0)

    async def admit(self, exchange: Exchange) -> None:
        """Raises RateLimited."""
        key = key_of(exchange.request)
        if key is None:
            return
        tokens = exchange.prompt_tokens + exchange.max_tokens
        taken = await self._shared.take(key, exchange.id, tokens) if self._shared and _is_limited(key) else None
        if taken is None:
            self._check(key, tokens)
            self._give_back(key, requests=-1, tokens=-tokens)
        else:
            self._copy(key, taken)
            if not taken.ok:
                self._check(key, tokens, taken.running)
                raise self._refusal(key, "requests", "Another gateway was faster", 1.0)
        self._running[key.grant.name] = self._running.get(key.grant.name, 0) + 1
        self._charges[exchange] = _Charge(key, tokens, shared=taken is not None)
        self.tell(exchange.request, key)

    async def ended(self, exchange: Exchange) -> None:
        charge = self._charges.pop(exchange, None)
        if charge is None:
            return
        self._running[charge.key.grant.name] -= 1
        used = sum(answer.prompt_tokens + answer.completion_tokens for answer in exchange.answers)
        requests, tokens = (1, charge.tokens) if _was_refused(exchange) else (0, charge.tokens - used)
        self._give_back(charge.key, requests=requests, tokens=tokens)
        if charge.shared and self._shared is not None:
            await self._shared.settle(charge.key, exchange.id, requests, tokens)

    def tell(self, request: Request, key: Key) -> None:
        """Put what is left beside the answer, in OpenAI's headers."""
        headers: dict[str, str] = {}
        for kind, bucket in (("requests", self._requests_of(key)), ("tokens", self._tokens_of(key))):
            if bucket is not None:
                headers[f"x-ratelimit-limit-{kind}"] = str(bucket.limit)
                headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level)))
                headers[f"x-ratelimit-reset-{kind}"] = written(bucket.seconds_until(bucket.limit))
        request.state.answer_headers = headers

    def _copy(self, key: Key, taken: Taken) -> None:
        """What is left for all is what is left here."""
        for bucket, level in ((self._requests_of(key), taken.requests), (self._tokens_of(key), taken.tokens)):
            if bucket is not None:
                bucket.level = level

    def _check(self, key: Key, tokens: int, running: int | None = None) -> None:
        """Raises RateLimited; takes nothing. `running`: of the key, everywhere."""
        most = key.grant.parallel
        if most is not None and (self._running.get(key.grant.name, 0) if running is None else running) >= most:
            raise self._refusal(key, "parallel", f"Limit {most} at once", _PARALLEL_RETRY_SECONDS)
        wanted = (("requests", self._requests_of(key), 1), ("tokens", self._tokens_of(key), tokens))
        for kind, bucket, amount in wanted:
            if bucket is None:
                continue
            if amount > bucket.limit:
                words = f"Limit {bucket.limit} {kind} a minute, requested {amount}; ask for fewer"
                raise self._refusal(key, kind, words, None)
            if bucket.level < amount:
                words = f"Limit {bucket.limit} {kind} a minute, remaining {max(0, int(bucket.level))}, requested"
                raise self._refusal(key, kind, f"{words} {amount}", bucket.seconds_until(amount))

    def _refusal(self, key: Key, limit: str, words: str, seconds: float | None) -> RateLimited:
        self._refused.labels(key.grant.name, limit).inc()
        return RateLimited(f"Rate limit reached for this API key on {limit}: {words}.", seconds)

    def _give_back(self, key: Key, *, requests: int, tokens: int) -> None:
        for bucket, amount in ((self._requests_of(key), requests), (self._tokens_of(key), tokens)):
            if bucket is not None:
                bucket.level = min(bucket.limit, bucket.level + amount)

    def _requests_of(self, key: Key) -> Bucket | None:
        return _bucket(self._requests, key.id, key.grant.requests_per_minute)

    def _tokens_of(self, key: Key) -> Bucket | None:
        return _bucket(self._tokens, key.id, key.grant.tokens_per_minute)


def _is_limited(key: Key) -> bool:
    grant = key.grant
    return any(limit is not None for limit in (grant.parallel, grant.requests_per_minute, grant.tokens_per_minute))


def key_of(request: Request) -> Key | None:
    """The key that asks; None where there are no keys."""
    return getattr(request.state, "key", None)


def written(seconds: float) -> str:
    """A time as OpenAI's headers have it: `120ms`, `8.64s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds / 1000, 60)
    return f"{int(minutes)}m{rest:.3g}s" if minutes else f"{rest:.4g}s"


def _bucket(buckets: dict[str, Bucket], name: str, limit: int | None) -> Bucket | None:
    """As full as it is now; None: there is no limit."""
    if limit is None:
        return None
    now = time.monotonic()
    bucket = buckets.setdefault(name, Bucket(limit, limit, now))
    bucket.fill(limit, now)
    return bucket


def _was_refused(exchange: Exchange) -> bool:
    """It failed before its first token, and neither by its client's leaving nor by the time that it gave."""
    failed = exchange.error is not None and not isinstance(exchange.error, CancelledError | DeadlineError)
    return failed and exchange.first_token_at is None


class _Gauges(Collector):
    def __init__(self, running: dict[str, int]) -> None:
        self._running = running

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("conch:key_running_requests", "Requests of a key that run", labels=["key"])
        for name, count in list(self._running.items()):
            family.add_metric([name], count)
        yield family
