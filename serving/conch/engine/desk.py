"""Where callers and the engine's thread meet: requests come in and are withdrawn, their outputs go out.

Keeps the unfinished answers, and whether more may come. Knows nothing of schedules or steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from conch.engine.request import FinishReason, Output
from conch.engine.sequence import Sequence
from conch_build.errors import ConchError, OverloadedError, RequestError, UnavailableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """What other threads have asked for since the last time."""

    arrived: list[Sequence]
    withdrawn: list[Sequence]
    closing: bool


class Desk:
    """`capacity` answers may be unfinished at once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.idle = False
        """The engine's thread waits for news."""
        self._wake = threading.Condition()  # guards what follows
        self._live: dict[str, list[Sequence]] = {}  # the unfinished answers to each request
        self._load = 0  # how many those are in all
        self._inbox: list[Sequence] = []
        self._withdrawn: list[Sequence] = []
        self._closing = False
        self._dead: str | None = None

    # From any thread.

    @property
    def load(self) -> int:
        """Unfinished answers."""
        return self._load

    @property
    def dead(self) -> bool:
        return self._dead is not None

    def check_open(self) -> None:
        """Raises UnavailableError when no request can come in any more."""
        if self._dead is not None:
            raise UnavailableError(self._dead, fix="Restart the server.")
        if self._closing:
            raise UnavailableError("is closed", where="engine")

    def enter(self, answers: list[Sequence]) -> None:
        """All the answers to a new request. Raises RequestError, OverloadedError, UnavailableError."""
        request = answers[0].request
        with self._wake:
            self.check_open()
            if request.id in self._live:
                raise RequestError(f"request id {request.id!r} is in use", param="id", code="invalid_value")
            if self._load + request.n > self._capacity:
                raise OverloadedError(
                    f"{self._load} answers run or wait already",
                    where="engine queue",
                    fix="Try again later.",
                )
            self._live[request.id] = answers
            self._load += request.n
            self._inbox.append(answers[0])
            self._wake.notify()

    def withdraw(self, request_id: str) -> bool:
        """Ask for the end of a request; False if it is not there (any more)."""
        with self._wake:
            answers = self._live.get(request_id, ())
            self._withdrawn += answers
            self._wake.notify()
            return bool(answers)

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()

    def notify(self) -> None:
        """There may be work for the engine's thread."""
        with self._wake:
            self._wake.notify()

    # From the engine's thread.

    def news(self, has_work: Callable[[], bool], patience: Callable[[], float | None]) -> News:
        """Waits for news, unless there is work without, and for as many seconds as `patience` says; None: endless."""
        with self._wake:
            while not (self._inbox or self._withdrawn or self._closing or has_work()):
                self.idle = True
                if not self._wake.wait(seconds := patience()) and seconds is not None:
                    break
            arrived, self._inbox = self._inbox, []
            withdrawn, self._withdrawn = self._withdrawn, []
            return News(arrived, withdrawn, self._closing)

    def unfinished(self, request_id: str | None = None) -> list[Sequence]:
        """The answers to a request, or to all."""
        if request_id is not None:
            return list(self._live.get(request_id, ()))
        return [sequence for answers in self._live.values() for sequence in answers]

    def leave(self, sequence: Sequence) -> bool:
        """An answer is finished. Whether it was the last one to its request."""
        sequence.finished = True
        with self._wake:
            answers = self._live[sequence.request.id]
            answers.remove(sequence)
            self._load -= 1
            if not answers:
                del self._live[sequence.request.id]
            return not answers

    def die(self, why: str) -> None:
        """The engine has failed: nothing can come in any more."""
        with self._wake:
            self._dead = why

    def send(self, sequence: Sequence, output: Output) -> bool:
        """Give a caller an output. False when that failed: the request is never told anything again."""
        try:
            sequence.sink(output)
        except Exception:
            log.exception("the sink of request %s failed: it is cancelled", sequence.request.id)
            for answer in (sequence, *self.unfinished(sequence.request.id)):
                answer.sink = _nobody
            return False
        return True


def last_output(
    sequence: Sequence, output: Output | None, reason: FinishReason, error: ConchError | None, *, final: bool
) -> Output:
    """`output`, or nothing, as the last one of an answer."""
    output = output or Output(sequence.request.id, index=sequence.index)
    return replace(output, finish_reason=reason, error=error, usage=sequence.usage(), final=final)


def _nobody(output: Output) -> None:
    """Where the outputs of a request go whose own sink has failed."""
