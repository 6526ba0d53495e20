"""The CPU engine in simulated time: its own scheduler, blocks and pace decide each step; a formula, how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from conch.engine.config import EngineConfig
from conch.engine.request import Output, Request, SamplingParams
from conch.engine.scheduler import Batch, Scheduler
from conch.engine.sequence import Sequence
from conch.engine.state import KvState
from conch.simulation.jobs import Gaps, Job
from conch.simulation.steps import Shape, StepTimes
from conch_build.errors import UnavailableError

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Hardware:
    """One engine and the machine that it runs on."""

    config: EngineConfig
    num_blocks: int
    tokens_per_block: int
    times: StepTimes
    kv_token_bytes: float = 0.0


@dataclass(slots=True)
class Use:
    """What replicas did, all together."""

    steps: int = 0
    busy: float = 0.0
    prompts: float = 0.0
    """Of the busy seconds, those that prompts added to steps."""
    tokens: int = 0
    """Of answers."""
    prompt_tokens: int = 0
    """Computed."""
    cached_tokens: int = 0
    preemptions: int = 0
    kv: float = 0.0
    """Share of the blocks that were held, times busy seconds."""
    places: float = 0.0
    """The same of the places in the batch."""
    short_of_kv: int = 0
    """Steps in which a request waited for blocks..."""
    short_of_places: int = 0
    """...and for a place."""
    gaps: Gaps = field(default_factory=Gaps)


class Engine(Protocol):
    """A simulated server, a door of the gateway's pool."""

    @property
    def name(self) -> str: ...

    alive: bool

    async def serve(self, job: Job, until: int) -> None:
        """Returns when the answer has `until` tokens. Raises UnavailableError when the server dies."""

    def die(self) -> None: ...

    def revive(self) -> None: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


class Server:
    """What both kinds of engine have in common: steps follow each other while there is work, death ends all of it."""

    def __init__(self, name: str, hardware: Hardware, use: Use, seed: int) -> None:
        self._name = name
        self.hardware = hardware
        self.use = use
        self.alive = True
        self._loop = asyncio.get_running_loop()
        self._spread = hardware.times.spread
        self._chance = random.Random(f"{seed}/{name}")
        self._turn: asyncio.TimerHandle | None = None
        self._ends: dict[Job, asyncio.Future[None]] = {}

    @property
    def name(self) -> str:
        return self._name

    async def probe(self) -> None:
        if not self.alive:
            raise UnavailableError("is down", where=self._name)

    async def close(self) -> None:
        """Nothing is left to close: who leaves the pool has ended its requests."""

    def _expect(self, job: Job) -> asyncio.Future[None]:
        """Its end. Raises UnavailableError where nobody listens."""
        if not self.alive:
            raise UnavailableError("is down", where=self._name)
        end = self._ends[job] = self._loop.create_future()
        return end

    def _end(self, job: Job) -> None:
        self._ends.pop(job).set_result(None)

    def _take_time(self, shape: Shape, then: Callable[[float], None]) -> None:
        """Call `then` when a step of that shape has ended, with the seconds that it took."""
        times = self.hardware.times
        mean = times.seconds(shape)
        seconds = mean * self._chance.choice(self._spread) if len(self._spread) > 1 else mean
        use = self.use
        use.steps += 1
        use.busy += seconds
        if shape.prompt:
            alone = times.seconds(shape._replace(prompt=0, attended=0)) if shape.decoding else 0.0
            use.prompts += seconds * (1 - alone / mean)
            use.prompt_tokens += shape.prompt
        self._turn = self._loop.call_at(self._loop.time() + seconds, then, seconds)

    def _produced(self, job: Job, now: float) -> None:
        """A token of its answer is there."""
        job.produced += 1
        self.use.tokens += 1
        if job.produced == 1:
            job.first = now
        else:
            self.use.gaps.add(now - job.last)
        job.last = now

    def die(self) -> None:
        self.alive = False
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        ends, self._ends = self._ends, {}
        for end in ends.values():
            if not end.done():
                end.set_exception(UnavailableError("has died", where=self._name))


class EngineReplica(Server):
    """`serve` takes a job as the engine's desk does: it is seen between two steps."""

    def __init__(self, name: str, hardware: Hardware, use: Use, seed: int = 0) -> None:
        super().__init__(name, hardware, use, seed)
        self._jobs: dict[str, tuple[Job, int]] = {}
        self.revive()

    def revive(self) -> None:
        """With nothing of what it knew."""
        hardware = self.hardware
        self.alive = True
        self._scheduler = Scheduler(hardware.config, hardware.num_blocks, hardware.tokens_per_block)
        self._jobs.clear()
        self._inbox: list[Sequence] = []
        self._number = 0

    async def serve(self, job: Job, until: int) -> None:
        end = self._expect(job)
        state = None
        if job.produced:  # another server has begun it: its keys and values come along
            state = KvState("", tuple(job.prompt), (0,) * job.produced, job.size - 1, ())
        request = Request(str(job.number), job.prompt, until, _GREEDY, state=state)
        self._number += 1
        self._inbox.append(Sequence(request, _nobody, self._number, self.hardware.config))
        self._jobs[request.id] = job, until
        if self._turn is None:
            self._turn = self._loop.call_at(self._loop.time(), self._begin)
        await end

    def _begin(self) -> None:
        """The next step, if anything is to do."""
        scheduler, use = self._scheduler, self.use
        for sequence in self._inbox:
            scheduler.add(sequence)
        self._inbox.clear()
        self._turn = None
        if not scheduler.busy:
            return
        preempted, hits = scheduler.preemptions, scheduler.prefix_hit_tokens
        decoding = scheduler.decoding()
        batch = scheduler.schedule(decoding)
        use.preemptions += scheduler.preemptions - preempted
        use.cached_tokens += scheduler.prefix_hit_tokens - hits
        if scheduler.waiting:
            full = len(scheduler.running) >= self.hardware.config.batch_size
            use.short_of_places += full
            use.short_of_kv += not full
        now = self._loop.time()
        context = prompt = attended = 0
        for index, (sequence, slot) in enumerate(batch):
            if index < len(decoding):
                context += slot.past
                continue
            sequence.arriving = None
            count = len(slot.tokens)
            prompt += count
            attended += count * slot.past + count * (count - 1) // 2
            job, _ = self._jobs[sequence.request.id]
            job.scheduled = job.scheduled or now
        shape = Shape(len(decoding), context, prompt, attended)
        self._take_time(shape, lambda seconds: self._settle(batch, shape, seconds))

    def _settle(self, batch: Batch, shape: Shape, seconds: float) -> None:
        scheduler, now = self._scheduler, self._loop.time()
        self.use.kv += seconds * scheduler.pool.used / scheduler.pool.num_blocks
        self.use.places += seconds * len(scheduler.running) / self.hardware.config.batch_size
        for sequence, slot in batch:
            computed = slot.past + len(slot.tokens)
            scheduler.settle(sequence, computed)
            if computed < len(sequence.tokens):
                continue
            job, until = self._jobs[sequence.request.id]
            sequence.tokens.append(0)
            self._produced(job, now)
            if job.produced >= until:
                job.cached = job.cached or sequence.cached_tokens
                scheduler.remove(sequence)
                del self._jobs[sequence.request.id]
                self._end(job)
        scheduler.pace.record(shape.decoding, shape.prompt, seconds)
        # Who hears of an end may ask again before the next step, as callers of the engine do.
        self._turn = self._loop.call_at(now, self._begin)


def _nobody(output: Output) -> None:
    """Tokens are counted, not sent."""
