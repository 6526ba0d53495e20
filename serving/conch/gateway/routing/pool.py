"""The servers of one model. Knows nothing of what is asked of them, but how long its prompt is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from conch.gateway.background import background
from conch.gateway.routing.prefixes import Prefixes
from conch.gateway.routing.standing import Standing
from conch_build.errors import ConchError, UnavailableError

PROBE_SECONDS = 0.5
_ANSWER_TOKENS = 128
"""What an answer is reckoned to need at most: `max_tokens` is often a mere ceiling."""
_TURN_S = 0.1


class Door(Protocol):
    """A server, as a pool needs it."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> None:
        """Raises ConchError without a sign of life from the engine."""

    async def close(self) -> None: ...


AnyDoor = TypeVar("AnyDoor", bound=Door)


@dataclass
class Place(Generic[AnyDoor]):
    """One request at one server, until `leave`."""

    door: AnyDoor
    index: int
    standing: Standing
    tokens: int
    left: bool = False

    def served(self) -> None:
        """Its first token is here."""
        self.standing.served()

    def failed(self) -> None:
        """The server has failed it."""
        self.standing.failed(time.monotonic())

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self.standing.gave_back(self.tokens)


class Pool(Generic[AnyDoor]):
    """`kv_tokens`: what the prefix caches of all servers hold together, as far as is known."""

    def __init__(self, doors: Sequence[AnyDoor], kv_tokens: int = 1 << 20) -> None:
        self.doors = doors
        self.standings = [Standing() for _ in doors]
        self._prefixes = Prefixes(max(1, kv_tokens // 32))
        self._picks = 0

    def pick(
        self, prompt: Sequence[int], max_tokens: int, salt: Hashable = None, *, but: Collection[int] = ()
    ) -> Place[AnyDoor]:
        """The server that is reckoned to be done with this prompt first, given what it has to do and what it knows.

        `but`: those that were asked already. Servers that are down are asked only when all are. Raises
        UnavailableError when none is left.
        """
        left = [index for index in range(len(self.doors)) if index not in but]
        if not left:
            raise UnavailableError("no server of the model is left to ask")
        usable = [index for index in left if self.standings[index].up] or left
        matched = self._prefixes.matched(prompt, salt) if len(self.doors) > 1 else {}

        def cost(index: int) -> tuple[int, int]:
            standing = self.standings[index]
            return standing.tokens + len(prompt) - matched.get(index, 0), standing.picked_at

        index = min(usable, key=cost)
        tokens = len(prompt) - matched.get(index, 0) + min(max_tokens, _ANSWER_TOKENS)
        self._picks += 1
        standing = self.standings[index]
        standing.picked_at = self._picks
        standing.took(tokens)
        if len(self.doors) > 1:
            self._prefixes.saw(index, prompt, salt)
        return Place(self.doors[index], index, standing, tokens)

    async def probe(self) -> None:
        """Ask all of them for a sign of life. Raises ConchError when none gives one."""
        failures = [error for error in await asyncio.gather(*map(self._probe, range(len(self.doors)))) if error]
        if len(failures) == len(self.doors):
            raise failures[0]

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Inside, servers are probed again and again, at intervals that differ a little."""
        try:
            async with background(self._watch()):
                yield
        finally:
            await asyncio.gather(*(door.close() for door in self.doors))

    async def _watch(self) -> None:
        probes: dict[int, asyncio.Task[ConchError | None]] = {}
        while len(self.doors) > 1:  # a server without another one is asked in any case
            now = time.monotonic()
            for index, standing in enumerate(self.standings):
                if standing.probe_at <= now and (index not in probes or probes[index].done()):
                    probes[index] = asyncio.ensure_future(self._probe(index))
            await asyncio.sleep(_TURN_S * random.uniform(0.75, 1.25))

    async def _probe(self, index: int) -> ConchError | None:
        failure: ConchError | None = None
        try:
            await self.doors[index].probe()
        except ConchError as error:
            failure = error
        standing = self.standings[index]
        if standing.up and failure is not None:
            self._prefixes.forget(index)
        standing.probed(failure is None, time.monotonic(), PROBE_SECONDS)
        return failure


_FAMILIES: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[Standing], float]], ...] = (
    (GaugeMetricFamily, "conch:upstream_up", "Whether a server is asked", lambda standing: standing.up),
    (GaugeMetricFamily, "conch:upstream_running", "Requests at a server", lambda standing: standing.running),
    (GaugeMetricFamily, "conch:upstream_tokens", "Tokens reckoned for them", lambda standing: standing.tokens),
    (CounterMetricFamily, "conch:upstream_requests", "Requests to a server", lambda standing: standing.requests),
    (CounterMetricFamily, "conch:upstream_failures", "Requests it failed", lambda standing: standing.failures),
    (CounterMetricFamily, "conch:upstream_retries", "Of them, those another got", lambda standing: standing.retries),
)


class PoolFigures(Collector):
    """`pools`: by the names of their models."""

    def __init__(self, pools: Mapping[str, Pool[Any]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        for kind, name, text, read in _FAMILIES:
            family = kind(name, text, labels=["model_name", "server"])
            for model, pool in self._pools.items():
                for door, standing in zip(pool.doors, pool.standings, strict=True):
                    family.add_metric([model, door.name], float(read(standing)))
            yield family
