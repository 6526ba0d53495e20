"""Simulated servers behind the gateway's own line and pool, which run here in simulated time.

    a job ──> line ──> pool ──> a server, or: pool of those that read prompts ──> link ──> pool of those that answer

A server that dies fails the requests that have begun to answer; the others are asked of another one, as the gateway
does it. Knows nothing of what is good or dear.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from conch.gateway.admission.line import Bounds, Line, Wish
from conch.gateway.admission.pace import Usual
from conch.gateway.errors import QueueFull, TooLate
from conch.gateway.routing.pool import PROBE_SECONDS, Member, Place, Pool
from conch.gateway.routing.routed import goes_on
from conch.simulation.clock import simulated
from conch.simulation.counted import CountedReplica, Policy
from conch.simulation.jobs import Job
from conch.simulation.outside import Failures, Scaling, Split
from conch.simulation.replica import Engine, EngineReplica, Hardware, Use
from conch.simulation.wide import WidePool
from conch_build.errors import ConchError, UnavailableError

DRAIN_SECONDS = 3600.0
BEHIND_PLACES = 1 / 8
"""Of its batch, requests that an engine gets beside it, so that it never waits for the gateway."""


@dataclass(frozen=True)
class Fleet:
    hardware: Hardware
    replicas: int
    policy: Policy | None = None
    """Count tokens by this policy; None: every server has the CPU engine's scheduler."""
    split: Split | None = None
    scaling: Scaling | None = None
    failures: Failures | None = None
    waiting: int | None = None
    """Requests that may wait in the gateway; None: as many as the engines' own queues hold."""
    overhead_seconds: float = 0.0
    """That a request spends outside of line and engine, before its first token."""
    seed: int = 0


@dataclass
class Outcome:
    jobs: list[Job]
    seconds: float = 0.0
    """Until the last answer was whole."""
    server_seconds: float = 0.0
    """That were paid for: of all servers, from their start on."""
    use: Use = field(default_factory=Use)
    prefill_use: Use = field(default_factory=Use)
    link_seconds: float = 0.0
    """That links were busy."""
    peak_waiting: int = 0
    """Requests in the gateway's line."""
    most_servers: int = 0
    deaths: int = 0


def run_open(fleet: Fleet, jobs: Iterable[Job]) -> Outcome:
    """Every job at its time."""
    return simulated(_Run(fleet).opened(list(jobs)))


def run_closed(fleet: Fleet, jobs: Iterator[Job], concurrency: int) -> Outcome:
    """`concurrency` jobs at any time, each followed by the next; their own times do not matter."""
    return simulated(_Run(fleet).closed(jobs, concurrency))


class _Run:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.outcome = Outcome([])
        self._loop: asyncio.AbstractEventLoop
        self._numbers = itertools.count()
        self._usual = Usual()
        self._paid: dict[str, float] = {}
        self._links: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._chance = random.Random(f"{fleet.seed}/outside")

    async def opened(self, jobs: list[Job]) -> Outcome:
        self._start()
        jobs.sort(key=lambda job: job.due)
        running: set[asyncio.Task[None]] = set()
        for job in jobs:
            if (wait := job.due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            task = self._loop.create_task(self._play(job))
            running.add(task)
            task.add_done_callback(running.discard)
        while running:
            await asyncio.wait(running)
        return await self._over()

    async def closed(self, jobs: Iterator[Job], concurrency: int) -> Outcome:
        self._start()

        async def worker() -> None:
            for job in jobs:
                job.due = self._loop.time()
                await self._play(job)

        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return await self._over()

    def _start(self) -> None:
        fleet = self.fleet
        self._loop = asyncio.get_running_loop()
        hardware = fleet.hardware
        kv_tokens = hardware.num_blocks * hardware.tokens_per_block
        kind = Pool[Engine] if fleet.policy is None else WidePool[Engine]
        self._pool: Pool[Engine] = kind((), kv_tokens)
        self._readers: Pool[Engine] = kind((), kv_tokens)
        self._line = Line(self._bounds(fleet.replicas), self._loop.time)
        self._pool.on_change(lambda servers: self._line.rebound(self._bounds(servers)))
        for _ in range(fleet.replicas):
            self._join()
        for number in range(fleet.split.prefill if fleet.split else 0):
            self._join_to(self._readers, f"reader-{number}", self.outcome.prefill_use)
        if fleet.scaling is not None:
            self._beside(self._scale(fleet.scaling))

    async def _over(self) -> Outcome:
        for task in self._tasks:
            task.cancel()
        outcome = self.outcome
        outcome.seconds = max((job.last for job in outcome.jobs), default=0.0)
        for began in self._paid.values():
            outcome.server_seconds += max(outcome.seconds - began, 0.0)
        return outcome

    def _bounds(self, servers: int) -> Bounds:
        """As the gateway has them of a plan that sets none."""
        config, count = self.fleet.hardware.config, max(servers, 1)
        places = count * (config.batch_size + -(-config.batch_size // 8))
        held = self.fleet.hardware.num_blocks * self.fleet.hardware.tokens_per_block
        waiting = self.fleet.waiting
        return Bounds(places, held * count, count * config.max_queue_size if waiting is None else waiting, float("inf"))

    async def _play(self, job: Job) -> None:
        """One request, from its sending to its end."""
        outcome, loop = self.outcome, self._loop
        outcome.jobs.append(job)
        if self.fleet.overhead_seconds:
            await asyncio.sleep(self.fleet.overhead_seconds)
        wish = Wish(1, self._usual.reckoned(len(job.prompt), job.answer, 1))
        outcome.peak_waiting = max(outcome.peak_waiting, self._line.waiting)
        try:
            await self._line.enter(wish)
        except (QueueFull, TooLate):
            job.error, job.last = "refused", loop.time()
            return
        job.admitted = loop.time()
        try:
            await self._answered(job)
        except UnavailableError:
            job.error, job.last = "server died", loop.time()
        else:
            self._usual.saw(len(job.prompt), job.cached, job.answer)
        self._line.leave(wish)

    async def _answered(self, job: Job) -> None:
        split = self.fleet.split
        if split is None or len(job.prompt) <= split.local_tokens:
            await self._asked(self._pool, job, job.answer)
            return
        await self._asked(self._readers, job, 1, then=lambda reader: self._travel(job, reader, split))
        if job.produced < job.answer:
            await self._asked(self._pool, job, job.answer)

    async def _asked(
        self, pool: Pool[Engine], job: Job, until: int, then: Callable[[str], asyncio.Future[None]] | None = None
    ) -> None:
        """Of one server, and of another where it dies before the first token. `then`: what its place is held for."""
        asked: set[Member[Engine]] = set()
        begun = job.produced
        while True:
            place: Place[Engine] = pool.pick(job.prompt, until, but=asked)
            asked.add(place.member)
            try:
                await place.door.serve(job, until)
                if then is not None:
                    await then(place.door.name)
                place.served()
                place.leave()
                return
            except UnavailableError as error:
                place.leave()
                if not goes_on(error, place, asked, pool, begun=job.produced > begun):
                    raise
                job.began_anew += 1

    def _travel(self, job: Job, reader: str, split: Split) -> asyncio.Future[None]:
        """Its keys and values over the reader's link, after those that wait for it."""
        now = self._loop.time()
        seconds = len(job.prompt) * self.fleet.hardware.kv_token_bytes / split.link_bytes_s
        free = max(self._links.get(reader, 0.0), now) + seconds
        self._links[reader] = free
        self.outcome.link_seconds += seconds
        job.moved = free + split.link_seconds - now
        arrived: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_at(now + job.moved, arrived.set_result, None)
        return arrived

    def _join(self) -> None:
        self._join_to(self._pool, f"server-{next(self._numbers)}", self.outcome.use)

    def _join_to(self, pool: Pool[Engine], name: str, use: Use) -> None:
        fleet = self.fleet
        server: Engine
        if fleet.policy is None:
            server = EngineReplica(name, fleet.hardware, use, fleet.seed)
        else:
            server = CountedReplica(name, fleet.hardware, use, fleet.seed, fleet.policy)
        self._paid.setdefault(name, self._loop.time())
        pool.join(server)
        self.outcome.most_servers = max(self.outcome.most_servers, len(self._pool) + len(self._readers))
        if fleet.failures is not None:
            self._beside(self._fail(pool, server, fleet.failures))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _scale(self, scaling: Scaling) -> None:
        calm_since: float | None = None
        while True:
            await asyncio.sleep(scaling.every)
            now, have = self._loop.time(), len(self._pool) + self._starting
            wanted = scaling.wanted(self._line.running + self._line.waiting)
            for _ in range(wanted - have):
                self._starting += 1
                self._beside(self._grow(scaling.start_seconds))
            calm_since = None if wanted >= have else now if calm_since is None else calm_since
            if calm_since is not None and now - calm_since >= scaling.calm_seconds and len(self._pool) > 1:
                calm_since = now
                member = min(self._pool.members.values(), key=lambda member: member.standing.running)
                self._beside(self._shrink(member.door.name))

    async def _grow(self, seconds: float) -> None:
        name = f"server-{next(self._numbers)}"
        self._paid[name] = self._loop.time()
        await asyncio.sleep(seconds)
        self._starting -= 1
        self._join_to(self._pool, name, self.outcome.use)

    async def _shrink(self, name: str) -> None:
        await self._pool.leave(name, DRAIN_SECONDS)
        self.outcome.server_seconds += self._loop.time() - self._paid.pop(name)

    async def _fail(self, pool: Pool[Engine], server: Engine, failures: Failures) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / failures.between_seconds))
            if server not in pool.doors:
                return
            server.die()
            self.outcome.deaths += 1
            back = self._loop.time() + failures.restart_seconds
            while not server.alive:
                await asyncio.sleep(min(PROBE_SECONDS, max(back - self._loop.time(), 0.0)))
                if self._loop.time() >= back:
                    server.revive()
                with contextlib.suppress(ConchError):  # of a pool in which nobody lives
                    await pool.probe()
