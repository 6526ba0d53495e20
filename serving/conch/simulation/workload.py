"""What a simulated fleet is asked: the loads of `conch bench`, as lengths without words. Pure, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conch.bench.traffic.lengths import Lengths
from conch.bench.traffic.loads import poisson
from conch.bench.traffic.trace import Call
from conch.simulation.jobs import Job
from conch_build.errors import InputError


@dataclass(frozen=True)
class Workload:
    """`shared_prefix`: tokens at the start of every prompt, on top of its own."""

    input: Lengths
    output: Lengths
    shared_prefix: int = 0
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest of a thousand requests, prompt and answer together."""
        return max(len(job.prompt) + job.answer for job in self.jobs([0.0] * 1000))

    def jobs(self, starts: Sequence[float]) -> Iterator[Job]:
        """One at each of `starts`."""
        chance = random.Random(self.seed)
        for number, start in enumerate(starts):
            yield self.job(number, start, self.input.draw(chance), self.output.draw(chance))

    def at_rate(self, rate: float, count: int) -> list[Job]:
        return list(self.jobs(poisson(rate, count, self.seed)))

    def of_trace(self, calls: Sequence[Call]) -> list[Job]:
        """Raises InputError for prompts given as text, whose tokens nobody has counted."""
        if any(call.prompt is not None for call in calls):
            raise InputError("holds prompts as text", where="--trace", fix="Give their `input_tokens` instead.")
        return [self.job(n, call.time, call.input_tokens, call.output_tokens) for n, call in enumerate(calls)]

    def job(self, number: int, start: float, prompt: int, answer: int) -> Job:
        """Its own tokens are numbers that no other job has."""
        own = range((number + 1) << 24, ((number + 1) << 24) + prompt)
        tokens: Sequence[int] = own if not self.shared_prefix else (*range(self.shared_prefix), *own)
        return Job(number, start, tokens, answer, self.shared_prefix)
