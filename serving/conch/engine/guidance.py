"""Requests that wait for their guides to be compiled. Decides when they enter, not what becomes of them then.

Only `check`, `wake` and `close` are for any thread, the rest for the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from conch.engine.guided import Grammar, Guides
from conch.engine.sequence import Sequence
from conch_build.errors import ConchError, OverloadedError, ServiceError

COMPILED_WITHIN_S = 10.0
"""No guide takes as long by itself: so many wait to be compiled before it."""


class Guidance:
    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: frozenset[int]) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called, on any thread, when a guide has been compiled."""
        self._guides = Guides(tokenizer_dir, vocab_size, end_ids)
        self._line: list[tuple[Sequence, Future[Grammar]]] = []

    def close(self) -> None:
        self._guides.close()

    @property
    def waiting(self) -> bool:
        return bool(self._line)

    @property
    def busy(self) -> bool:
        """Whether `admit` has something new to do."""
        return any(grammar.done() for _, grammar in self._line)

    def add(self, sequence: Sequence) -> None:
        """A request with a guide gets in line; all its answers will follow it."""
        guide = sequence.request.sampling.guide
        assert guide is not None
        grammar = self._guides.compile(guide)
        self._line.append((sequence, grammar))
        grammar.add_done_callback(lambda _: self.wake())

    def admit(self) -> tuple[list[Sequence], list[tuple[Sequence, ConchError]]]:
        """Those whose guides are compiled, and those that cannot follow theirs, and why."""
        admitted: list[Sequence] = []
        failed: list[tuple[Sequence, ConchError]] = []
        too_late = time.monotonic_ns() - COMPILED_WITHIN_S * 1e9
        for waiting in list(self._line):
            sequence, grammar = waiting
            if not grammar.done():
                if sequence.arrival_ns < too_late:
                    failed.append((sequence, _overloaded()))
                continue
            self._line.remove(waiting)
            error = grammar.exception()
            if error is None:
                for answer in (sequence, *sequence.siblings):
                    answer.sampler.follow(grammar.result())
                admitted.append(sequence)
            elif isinstance(error, ConchError):
                failed.append((sequence, error))
            else:
                failed.append((sequence, ServiceError(f"{type(error).__name__}: {error}", where="compiling a guide")))
        return admitted, failed

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended, wherever it was."""
        guide = sequence.request.sampling.guide
        left = [grammar for waiting, grammar in self._line if waiting is sequence]
        self._line = [(waiting, grammar) for waiting, grammar in self._line if waiting is not sequence]
        for grammar in left:
            if guide is not None and all(other is not grammar for _, other in self._line):
                self._guides.withdraw(guide, grammar)


def _overloaded() -> OverloadedError:
    return OverloadedError(
        f"the guide was not compiled within {COMPILED_WITHIN_S:g} s: others come before it",
        where="guided decoding",
        fix="Try again later.",
    )
