"""The servers of one model, which come and go. Knows nothing of what is asked of them, but how long its prompt is."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from conch.gateway.background import background
from conch.gateway.routing.prefixes import BLOCK, Prefixes
from conch.gateway.routing.standing import Standing
from conch_build.errors import ConchError, UnavailableError

PROBE_SECONDS = 0.5
_ANSWER_TOKENS = 128
"""What an answer is reckoned to need at most: `max_tokens` is often a mere ceiling."""
_TURN_S = 0.1
_BLOCKS = 1 << 15
"""That are remembered where it is not known what the caches hold."""


class Door(Protocol):
    """A server, as a pool needs it."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> None:
        """Raises ConchError without a sign of life from the engine."""

    async def close(self) -> None: ...


AnyDoor = TypeVar("AnyDoor", bound=Door)


@dataclass(eq=False)
class Member(Generic[AnyDoor]):
    """A server for as long as it belongs to the pool. `number`: no other member has it at the same time."""

    number: int
    door: AnyDoor
    standing: Standing = field(default_factory=Standing)
    idle: asyncio.Event | None = None
    """Set once it has left and its last request has ended."""

    def gave_back(self, tokens: int) -> None:
        self.standing.gave_back(tokens)
        if self.idle is not None and not self.standing.running:
            self.idle.set()


@dataclass
class Place(Generic[AnyDoor]):
    """One request at one server, until `leave`."""

    member: Member[AnyDoor]
    tokens: int
    left: bool = False

    @property
    def door(self) -> AnyDoor:
        return self.member.door

    @property
    def standing(self) -> Standing:
        return self.member.standing

    def served(self) -> None:
        """Its first token is here."""
        self.standing.served()

    def failed(self) -> None:
        """The server has failed it."""
        self.standing.failed(time.monotonic())

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self.member.gave_back(self.tokens)


class Pool(Generic[AnyDoor]):
    """`kv_tokens`: what the prefix cache of each server holds, as far as is known. `optional`: requests can do without
    it, so that a server that is down is never asked, and one alone is watched too."""

    def __init__(self, doors: Iterable[AnyDoor], kv_tokens: int | None = None, *, optional: bool = False) -> None:
        self._optional = optional
        self.members: dict[int, Member[AnyDoor]] = {}
        self._kv_tokens = kv_tokens
        self._prefixes = Prefixes(1)
        self._picks = 0
        self._listeners: list[Callable[[int], None]] = []
        for door in doors:
            self.join(door)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def doors(self) -> list[AnyDoor]:
        return [member.door for member in self.members.values()]

    def on_change(self, listener: Callable[[int], None]) -> None:
        """Call it with the number of servers whenever one has come or gone."""
        self._listeners.append(listener)

    def join(self, door: AnyDoor) -> None:
        """From now on it may be asked. Raises ValueError when one of its name is there."""
        if door.name in {other.name for other in self.doors}:
            raise ValueError(f"{door.name} belongs to the pool already")
        number = next(number for number in itertools.count() if number not in self.members)
        self.members[number] = Member(number, door)
        self._changed()

    async def leave(self, name: str, seconds: float) -> None:
        """No new request goes there; return when its last has ended, or after `seconds`. Then its door is closed.

        A name that is not there is none to wait for.
        """
        member = next((member for member in self.members.values() if member.door.name == name), None)
        if member is None:
            return
        del self.members[member.number]
        self._prefixes.forget(member.number)
        self._changed()
        member.idle = asyncio.Event()
        try:
            if member.standing.running:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(member.idle.wait(), seconds)
        finally:
            await member.door.close()

    def pick(
        self, prompt: Sequence[int], max_tokens: int, salt: Hashable = None, *, but: Collection[Member[AnyDoor]] = ()
    ) -> Place[AnyDoor]:
        """The server that is reckoned to be done with this prompt first, given what it has to do and what it knows.

        `but`: those that were asked already. Servers that are down are asked only when all are. Raises
        UnavailableError when none is left.
        """
        left = self.left(but)
        if not left:
            raise UnavailableError("no server of the model is left to ask" if but else "the model has no server now")
        usable = [member for member in left if member.standing.up]
        if not usable and self._optional:
            raise UnavailableError("no server is up")
        usable = usable or left
        several = len(self.members) > 1
        matched = self._prefixes.matched(prompt, salt) if several else {}

        def cost(member: Member[AnyDoor]) -> tuple[int, int]:
            standing = member.standing
            return standing.tokens + len(prompt) - matched.get(member.number, 0), standing.picked_at

        member = min(usable, key=cost)
        tokens = len(prompt) - matched.get(member.number, 0) + min(max_tokens, _ANSWER_TOKENS)
        self._picks += 1
        member.standing.picked_at = self._picks
        member.standing.took(tokens)
        if several:
            self._prefixes.saw(member.number, prompt, salt)
        return Place(member, tokens)

    def left(self, asked: Collection[Member[AnyDoor]]) -> list[Member[AnyDoor]]:
        """All but those that were asked."""
        return [member for member in self.members.values() if member not in asked]

    async def probe(self) -> None:
        """Ask all of them for a sign of life. Raises ConchError when none gives one."""
        asked = list(self.members.values())
        failures = [error for error in await asyncio.gather(*map(self._probe, asked)) if error]
        if not asked:
            raise UnavailableError("the model has no server now")
        if len(failures) == len(asked):
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
        probes: dict[Member[AnyDoor], asyncio.Task[ConchError | None]] = {}
        while True:
            now = time.monotonic()
            probes = {member: probe for member, probe in probes.items() if not probe.done()}
            # A server without another one is asked in any case.
            for member in self.members.values() if len(self) > 1 or self._optional else ():
                if member.standing.probe_at <= now and member not in probes:
                    probes[member] = asyncio.ensure_future(self._probe(member))
            await asyncio.sleep(_TURN_S * random.uniform(0.75, 1.25))

    async def _probe(self, member: Member[AnyDoor]) -> ConchError | None:
        failure: ConchError | None = None
        try:
            await member.door.probe()
        except ConchError as error:
            failure = error
        if member.standing.up and failure is not None:
            self._prefixes.forget(member.number)
        member.standing.probed(failure is None, time.monotonic(), PROBE_SECONDS)
        return failure

    def _changed(self) -> None:
        blocks = _BLOCKS if self._kv_tokens is None else self._kv_tokens // BLOCK * len(self)
        self._prefixes.capacity = max(1, blocks)
        for listener in self._listeners:
            listener(len(self))


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

    def __init__(self, pools: Mapping[str, Sequence[Pool[Any]]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        for kind, name, text, read in _FAMILIES:
            family = kind(name, text, labels=["model_name", "server"])
            for model, pools in self._pools.items():
                for member in (member for pool in pools for member in pool.members.values()):
                    family.add_metric([model, member.door.name], float(read(member.standing)))
            yield family
