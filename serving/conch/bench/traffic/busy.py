"""Busy time of a server out of its requests, shared among them as `conch_build.cost` says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from conch.bench.traffic.record import Record
from conch_build.cost import Work


def work_of(records: Sequence[Record]) -> Work:
    """The work that these requests were, as seen from outside: a request runs from when it was sent to its end."""
    changes: list[tuple[float, int, int]] = []  # when, and how many more are before and after their first token
    for record in records:
        first = min(record.arrivals[0], record.ended) if record.arrivals else record.ended
        changes += [(record.sent, 1, 0), (first, -1, 1), (record.ended, 0, -1)]
    prefill = decode = 0.0
    before = after = 0
    changes.sort()
    for (start, more_before, more_after), (end, _, _) in pairwise(changes):
        before, after = before + more_before, after + more_after
        if running := before + after:
            prefill += (end - start) * before / running
            decode += (end - start) * after / running
    cached = sum(record.cached_tokens or 0 for record in records)
    return Work(
        prefill_seconds=prefill,
        decode_seconds=decode,
        computed_tokens=sum(record.prompt_tokens for record in records) - cached,
        cached_tokens=cached,
        generated_tokens=sum(record.tokens for record in records),
    )
