"""An engine whose tokens are counted, not kept: for GPU engines, and for fleets too large to run every scheduler.

A step costs the same however many sequences decode in it: all of them grow by one token, so that each has its last one
after so many steps. Prompts go first come first served. `GUARANTEED` is TensorRT-LLM's default capacity policy
(GUARANTEED_NO_EVICT): a request is let in when its whole answer has blocks, and a step takes prompts up to
`max_num_tokens`. `OPTIMISTIC` is the CPU engine's: blocks for what is there, as many tokens of prompts as `Pace`
allows, the last one in is preempted where blocks run out. The shared prefix of prompts is held once.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from enum import Enum

from conch.engine.pace import Pace
from conch.engine.scheduler import CHUNK, STEP_PROMPT_TOKENS
from conch.simulation.jobs import Job
from conch.simulation.replica import Hardware, Server, Use
from conch.simulation.steps import Shape


class Policy(Enum):
    GUARANTEED = "guaranteed"
    OPTIMISTIC = "optimistic"


@dataclass(slots=True, eq=False)
class _Run:
    job: Job
    until: int
    left: int
    """Tokens still to be computed before it decodes."""
    context: int
    """Tokens that are computed."""
    last_turn: int = 0
    """In which it has its last token, once it decodes."""
    held: int = 0
    """Blocks."""
    began_at: int = 0
    """Its context, less the turn at which it began to decode."""


class CountedReplica(Server):
    def __init__(
        self, name: str, hardware: Hardware, use: Use, seed: int = 0, policy: Policy = Policy.OPTIMISTIC
    ) -> None:
        super().__init__(name, hardware, use, seed)
        self._policy = policy
        self.revive()

    def revive(self) -> None:
        self.alive = True
        self._waiting: deque[_Run] = deque()
        self._prompts: list[_Run] = []
        self._decoding: list[tuple[int, int, _Run]] = []
        """A heap: who has the last token first comes first."""
        self._numbers = itertools.count()
        self._turns = 0
        self._context = 0
        self._blocks = 0
        self._warm = False
        """It has computed the prefix that all share."""
        self._pace = Pace()

    async def serve(self, job: Job, until: int) -> None:
        end = self._expect(job)
        computed = job.size - 1 if job.produced else 0
        self._waiting.append(_Run(job, until, job.size - computed, computed))
        if self._turn is None:
            self._turn = self._loop.call_at(self._loop.time(), self._begin)
        await end

    def _begin(self) -> None:
        self._turn = None
        decoding = len(self._decoding)
        if not (decoding or self._prompts or self._waiting):
            return
        if self._policy is Policy.OPTIMISTIC:
            self._make_room()
            decoding = len(self._decoding)
        parts = self._prompt_parts(decoding)
        now, prompt, attended = self._loop.time(), 0, 0
        for run, count in parts:
            prompt += count
            attended += count * run.context + count * (count - 1) // 2
            run.job.scheduled = run.job.scheduled or now
        shape = Shape(decoding, self._context, prompt, attended)
        self._take_time(shape, lambda seconds: self._settle(shape, parts, seconds))

    def _settle(self, shape: Shape, parts: list[tuple[_Run, int]], seconds: float) -> None:
        use, now, config = self.use, self._loop.time(), self.hardware.config
        running = shape.decoding + len(self._prompts)
        use.kv += seconds * min(self._used() / self.hardware.num_blocks, 1.0)
        use.places += seconds * running / config.batch_size
        self._turns += 1
        self._context += shape.decoding
        use.tokens += shape.decoding
        use.gaps.add(seconds, shape.decoding)
        while self._decoding and self._decoding[0][0] <= self._turns:
            run = heapq.heappop(self._decoding)[2]
            self._leave(run)
            run.job.produced, run.job.last = run.until, now
            self._end(run.job)
        for run, count in parts:
            run.left -= count
            run.context += count
            if not run.left:
                self._prompts.remove(run)
                self._decode(run, now)
        self._pace.record(shape.decoding, shape.prompt, seconds)
        self._turn = self._loop.call_at(now, self._begin)

    def _decode(self, run: _Run, now: float) -> None:
        """Its prompt is computed, and the next token of its answer is there."""
        job = run.job
        self._produced(job, now)
        if job.shared:
            self._warm = True
        left = run.until - job.produced
        if not left:
            self._free(run)
            self._end(job)
            return
        run.last_turn, run.began_at = self._turns + left, run.context - self._turns
        self._context += run.context
        heapq.heappush(self._decoding, (run.last_turn, next(self._numbers), run))

    def _leave(self, run: _Run) -> None:
        """It decodes no more."""
        run.context = run.began_at + self._turns
        self._context -= run.context
        self._free(run)

    def _free(self, run: _Run) -> None:
        self._blocks -= run.held

    def _used(self) -> float:
        """Blocks: those taken at admission, and what answers have grown by since, half a block each unfilled."""
        if self._policy is Policy.GUARANTEED:
            return self._blocks
        size = self.hardware.tokens_per_block
        grown = self._context / size + len(self._decoding) / 2
        return grown + sum(run.held for run in self._prompts)

    def _prompt_parts(self, decoding: int) -> list[tuple[_Run, int]]:
        """Tokens of prompts in the next step."""
        config = self.hardware.config
        count = len(self._prompts) + len(self._waiting)
        left = config.max_num_tokens - decoding
        most = left
        if self._policy is Policy.OPTIMISTIC and config.chunked_prefill:
            left = min(left, STEP_PROMPT_TOKENS)
            left = min(left, self._pace.tokens(decoding, count)) if decoding else left
            most = CHUNK if count > 1 else left
        parts = []
        for run in self._prompts:
            if left > 0:
                parts.append((run, min(run.left, most, left)))
                left -= parts[-1][1]
        while self._waiting and left > 0:
            if decoding + len(self._prompts) >= config.batch_size:
                self.use.short_of_places += 1
                break
            run = self._waiting[0]
            if not (config.chunked_prefill or run.left <= left or not (parts or decoding)):
                break
            if not self._admit(run):
                self.use.short_of_kv += 1
                break
            self._prompts.append(self._waiting.popleft())
            parts.append((run, min(run.left, most, left)))
            left -= parts[-1][1]
        return parts

    def _admit(self, run: _Run) -> bool:
        hardware, job = self.hardware, run.job
        size = hardware.tokens_per_block
        hit = job.shared // size * size if self._warm and hardware.config.reuse and not run.context else 0
        tokens = len(job.prompt) + run.until - 1 if self._policy is Policy.GUARANTEED else job.size
        needed = -(-(tokens - hit) // size)
        running = len(self._decoding) + len(self._prompts)
        spare = running if self._policy is Policy.OPTIMISTIC else 0
        if running and self._used() + needed + spare > hardware.num_blocks:
            return False
        if hit:
            run.context, run.left = hit, run.left - hit
            self.use.cached_tokens += hit
            job.cached = hit
        run.held = needed
        self._blocks += needed
        return True

    def _make_room(self) -> None:
        """Preempt the last ones in, as long as answers have grown over all blocks."""
        while len(self._decoding) > 1 and self._used() > self.hardware.num_blocks:
            entry = max(self._decoding, key=lambda entry: entry[1])
            self._decoding.remove(entry)
            heapq.heapify(self._decoding)
            run = entry[2]
            run.job.produced = run.until - (run.last_turn - self._turns)
            run.job.last = self._loop.time()
            self._leave(run)
            self.use.preemptions += 1
            self._waiting.appendleft(_Run(run.job, run.until, run.job.size, 0))
