"""One load, put together and measured over rounds: what `conch bench` runs, and each side of a comparison."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from conch.bench.traffic.counters import counters, grown
from conch.bench.traffic.energy import read_meter, used
from conch.bench.traffic.loads import Generator, Session, Target, Turn, poisson
from conch.bench.traffic.measures import Round, Terms, measures
from conch.bench.traffic.prompts import Mix, Words, Writer
from conch.bench.traffic.record import Record
from conch.bench.traffic.trace import Call
from conch_build.errors import InputError, ServiceError

OnRecord = Callable[[Record], None]
_SECONDS_OF_A_RATE = 10
"""Of traffic at a rate, where no number of requests is given."""


@dataclass(frozen=True)
class Load:
    """So many requests at once, so many a second, or those of a trace."""

    concurrency: int | None = None
    rate: float | None = None
    calls: Sequence[Call] = ()
    requests: int | None = None
    """Sessions of a round; None: as many as at once, or ten seconds' worth."""
    duration: float | None = None

    @property
    def label(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} at once"
        return f"{self.rate:g}/s" if self.rate is not None else "trace"

    @property
    def count(self) -> int:
        """Sessions of a round; with a duration, of a rate, as many as come in it."""
        if self.calls:
            return len(self.calls)
        if self.rate is not None and self.duration is not None:
            return max(round(self.rate * self.duration), 1)
        if self.requests is not None:
            return self.requests
        return self.concurrency or max(round((self.rate or 1) * _SECONDS_OF_A_RATE), 2)


@dataclass
class Trial:
    """A target and what it is asked. `metrics_url`: the server's own counters; `metered`: it runs on this machine."""

    target: Target
    mix: Mix
    writer: Writer
    terms: Terms = field(default_factory=Terms)
    timeout: float = 600.0
    think: float = 0.0
    metrics_url: str | None = None
    metered: bool = False
    _next: int = field(default=0, init=False)

    async def warm_up(self) -> None:
        """One request that does not count. Raises ServiceError where it is not answered."""
        session = self.mix.session(1_000_000, self.writer)
        generator = Generator(self.target, timeout=self.timeout)
        (record, *_) = await generator.closed(iter([session]), 1)
        check([record])

    async def measure(self, load: Load, on_record: OnRecord = lambda record: None) -> Round:
        """One round. No two have a prompt in common. Raises ServiceError where no request was answered."""
        generator = Generator(self.target, timeout=self.timeout, think=self.think, on_record=on_record)
        first = self._next
        self._next += load.count if load.duration is None else 1_000_000
        sessions = self._sessions(load, first)
        counted, meter = await counters(self.metrics_url), read_meter() if self.metered else {}
        began, own = time.perf_counter(), time.process_time()
        if load.calls:
            records = await generator.opened(sessions, [call.time for call in load.calls])
        elif load.rate is not None:
            records = await generator.opened(sessions, poisson(load.rate, load.count, self.mix.seed + first))
        else:
            assert load.concurrency is not None
            records = await generator.closed(sessions, load.concurrency, load.duration)
        seconds, own = time.perf_counter() - began, time.process_time() - own
        joules = used(meter, read_meter()) if self.metered else None
        check(records)
        return Round(records, seconds, own, grown(counted, await counters(self.metrics_url)), joules)

    def _sessions(self, load: Load, first: int) -> Iterator[Session]:
        if load.calls:
            return iter([self._called(call, first + n) for n, call in enumerate(load.calls)])
        if load.duration is not None:
            return (self.mix.session(number, self.writer) for number in itertools.count(first))
        # Written before the clock starts: writing one would hold up the requests that run.
        return iter([self.mix.session(number, self.writer) for number in range(first, first + load.count)])

    def _called(self, call: Call, number: int) -> Session:
        page = f"{self.mix.seed}-{number}"
        content = call.prompt if call.prompt is not None else self.writer.write(page, call.input_tokens)
        return Session(number, call.model or next(iter(self.mix.models)), (Turn(content, call.output_tokens),))


def row_of(load: Load, rounds: Sequence[Round], terms: Terms) -> dict[str, Any]:
    """A load's figures over all its rounds together."""
    kept = None
    if load.rate is not None or load.calls:
        # Last due over the time that it took, less the shortest answer, which the last request may take in any case.
        whole = [(max(r.due for r in one.records), min(r.e2e for r in one.records), one.seconds) for one in rounds]
        kept = sum(due + least for due, least, _ in whole) / sum(seconds for _, _, seconds in whole)
    return {
        "load": load.label,
        "concurrency": load.concurrency,
        "rate": load.rate,
        "kept_share": kept,
        **measures(rounds, terms),
    }


def check(records: Sequence[Record]) -> None:
    """Raises where everything failed, with the first reason: InputError for what was refused, else ServiceError."""
    if records and all(record.error for record in records):
        failed = f"none of {len(records)} requests was" if len(records) > 1 else "a request was not"
        kind = InputError if records[0].error in ("not found", "rejected") else ServiceError
        raise kind(f"{failed} answered: {records[0].message}")


async def calibrated(target: Target, model: str, words: Words) -> Words:
    """`words`, with what a word of theirs and an empty prompt take in the server's own count of tokens."""
    found = []
    for count in (50, 250):
        record = Record(0, model, 0.0)
        content = " ".join(words.words(f"scale-{count}", count))
        (record,) = await Generator(target).closed(iter([Session(0, model, (Turn(content, 2),))]), 1)
        check([record])
        found.append((count, record.prompt_tokens))
    (few, short), (many, long) = found
    per_word = (long - short) / (many - few)
    return Words(words.texts, per_word, short - few * per_word) if per_word > 0 else words
