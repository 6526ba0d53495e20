"""What is asked of every side of a comparison: prompts of exact lengths, and how many at once.

Real text, cut to the token, the same ids for all sides; greedy, and never ended early. Knows nothing of who answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from conch.bench.figures import Figures, Timing, summarize

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Job:
    """One round for one side: these prompts, so many at once."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    concurrency: int


@dataclass(frozen=True)
class Measured:
    """A job as a side did it; `timings` in the order of `job.prompts` at concurrency 1, else as they ended."""

    seconds: float
    timings: Sequence[Timing]


@dataclass(frozen=True)
class Workload:
    """`prompt_tokens` in, `max_tokens` out, `shared_tokens` of them common to all prompts of a round."""

    name: str
    title: str
    prompt_tokens: int
    max_tokens: int
    shared_tokens: int = 0
    repeats: bool = False
    """Each prompt is sent twice, one at a time: cold, then again."""
    least_requests: int = 4
    """Of a round, whatever its concurrency, so that a median means something."""

    @property
    def mean_context(self) -> float:
        """Tokens that a decode step looks back on, on average."""
        return self.prompt_tokens + self.max_tokens / 2


SHORT = Workload("short", "128 in, 128 out", 128, 128)
LONG = Workload("long", "1,000 in, 64 out", 1000, 64)
PREFIX = Workload("prefix", "1,000 shared + 32 own in, 64 out", 1032, 64, shared_tokens=1000)
REPEAT = Workload("repeat", "1,000 in, 8 out, sent twice", 1000, 8, repeats=True)
WORKLOADS = (SHORT, LONG, PREFIX, REPEAT)


def tiny(workload: Workload) -> Workload:
    """The same in small, to see that every side runs."""
    shared = 64 if workload.shared_tokens else 0
    title = f"{workload.title}, but in small"
    return replace(workload, title=title, prompt_tokens=96, max_tokens=8, shared_tokens=shared, least_requests=1)


class Texts:
    """Prompts out of `texts`: their order differs from prompt to prompt, and so do their first words."""

    def __init__(self, texts: Sequence[str], encode: Encode) -> None:
        self.texts = texts
        self.encode = encode

    def prompt(self, page: str, tokens: int) -> tuple[int, ...]:
        """Exactly `tokens` ids, the same for the same `page`; those of other pages share no KV block with them."""
        chance = random.Random(page)
        ids: list[int] = []
        while len(ids) < tokens:
            ids += self.encode("\n\n".join([f"Page {page}.", *chance.sample(self.texts, len(self.texts))]))
        return tuple(ids[:tokens])


def jobs(workload: Workload, concurrency: int, round_number: int, texts: Texts) -> list[Job]:
    """What a side does in a round: the last job is measured, those before it only prepare.

    No two rounds or concurrencies have a prompt in common. A shared prefix is in the cache before it counts, as a
    system prompt is.
    """
    count = max(concurrency, workload.least_requests)
    own = workload.prompt_tokens - workload.shared_tokens
    chapter = f"{workload.name}-{concurrency}-{round_number}"
    shared = texts.prompt(chapter, workload.shared_tokens)
    prompts = [(*shared, *texts.prompt(f"{chapter}-{n}", own)) for n in range(count)]
    if workload.repeats:
        prompts = [prompt for prompt in prompts for _ in range(2)]
    measured = Job(tuple(prompts), workload.max_tokens, concurrency)
    return [Job((shared,), 2, 1), measured] if shared else [measured]


def figures(workload: Workload, job: Job, measured: Measured) -> list[Figures]:
    """A round's figures: one for all requests, or one for the cold ones and one for their repeats."""
    if not workload.repeats:
        return [summarize(job.concurrency, measured.seconds, measured.timings)]
    halves = (measured.timings[::2], measured.timings[1::2])
    return [summarize(job.concurrency, sum(timing.last for timing in half), half) for half in halves]
