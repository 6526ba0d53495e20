"""The engine's thread: what it does between two steps, and with what a step has computed.

What a request does wrong ends that request; what a step does wrong ends those that ran in it; only a runner
that keeps failing ends the engine. Knows nothing of how requests come in.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from conch.engine.answer import choose_next, score_prompt
from conch.engine.desk import Desk, last_output
from conch.engine.lobby import Lobby
from conch.engine.request import FinishReason, Output
from conch.engine.sampling import Chooser
from conch.engine.scheduler import Scheduler
from conch.engine.sequence import Sequence
from conch.engine.stats import Counters
from conch.engine.step import Step, Stepper
from conch.engine.watch import Watch
from conch_build.errors import ConchError, ServiceError, UnavailableError

log = logging.getLogger(__name__)

FAILURES_TOLERATED = 3
"""Failed steps in a row after which the runner counts as dead."""
OUTSIDE_WAIT_S = 0.05
"""How often those who wait for an adapter or a guide are looked after when nothing else runs."""
STUCK_AFTER_S = 60.0
"""A step longer than this makes the engine unhealthy."""


class Loop:
    """`run` is the thread; others may read `counters`, `turned` and `stuck`."""

    def __init__(self, desk: Desk, lobby: Lobby, scheduler: Scheduler, stepper: Stepper) -> None:
        self._desk = desk
        self._lobby = lobby
        self._scheduler = scheduler
        self._stepper = stepper
        self._watch = Watch()
        self._failures = 0
        self.counters = Counters()
        self.turned = time.monotonic()
        """When the last step ended."""

    @property
    def stuck(self) -> bool:
        """A step has been running for too long."""
        return not self._desk.idle and time.monotonic() - self.turned > STUCK_AFTER_S

    def run(self) -> None:
        """Until the desk is closed."""
        try:
            while self._between_steps():
                self._step()
        except BaseException as error:
            log.exception("the engine has failed")
            self._die(error)

    def _between_steps(self) -> bool:
        """Wait for work; take in arrivals, cancellations and deadlines. False when closing."""
        news = self._desk.news(
            lambda: self._scheduler.busy or self._lobby.busy,
            lambda: OUTSIDE_WAIT_S if self._lobby.waiting else None,  # who waits may run out of time, or leave
        )
        if self._desk.idle:
            self.turned = time.monotonic()
            self._desk.idle = False
        for sequence in news.arrived:
            self._watch.add(sequence.request)
            if not self._lobby.add(sequence):
                self._scheduler.add(sequence)
        for sequence in news.withdrawn if not news.closing else self._desk.unfinished():
            self._finish(sequence, "cancelled")
        if news.closing:
            return False
        now = time.monotonic()
        for request_id in self._watch.expired(now):
            self._end(request_id, "deadline")
        for request_id in self._watch.abandoned(now):
            self._end(request_id, "cancelled")
        admitted, failed = self._lobby.admit()
        for sequence in admitted:
            self._scheduler.add(sequence)
        for sequence, error in failed:
            self._finish(sequence, "error", error=error)
        return True

    def _step(self) -> None:
        if not self._scheduler.busy:  # the last one was just cancelled
            return
        started = time.monotonic_ns()
        try:
            step = self._stepper.compute(started)
        except Exception as error:
            self._fail(error)
            return
        self._failures = 0
        produced = self._settle(step)
        self.turned = time.monotonic()
        seconds = self.turned - started * 1e-9
        self.counters.steps += 1
        self.counters.step_seconds += seconds
        self._stepper.learn(step, produced, seconds)

    def _settle(self, step: Step) -> int:
        """A step was computed: account for it and choose what comes next. Returns how many tokens that were."""
        now_ns = time.monotonic_ns()
        row, produced, chooser = 0, 0, step.chooser
        for sequence, slot in step.batch:
            row += slot.rows
            if sequence.finished:  # with another answer to its request, whose sink has just failed
                continue
            computed = slot.past + len(slot.tokens) - len(sequence.draft)
            self._scheduler.settle(sequence, computed)
            if chooser is None or not slot.rows:
                continue
            if sequence.request.sampling.prompt_log_probs:
                score_prompt(sequence, slot, chooser, row - slot.rows)
            if computed == len(sequence.tokens):
                for child in self._stepper.fork(sequence):
                    produced += self._accept(child, chooser, row - 1, now_ns)
                produced += self._accept(sequence, chooser, row - 1 - len(sequence.draft), now_ns)
        return produced

    def _accept(self, sequence: Sequence, chooser: Chooser, row: int, now_ns: int) -> int:
        """Choose a sequence's next tokens and send them. Returns how many they are."""
        if sequence.finished:
            return 0
        chosen = choose_next(sequence, chooser, row)
        tokens = chosen.output.tokens
        if tokens:
            sequence.first_token_ns = sequence.first_token_ns or now_ns
            sequence.last_token_ns = now_ns
            self._scheduler.settle(sequence, len(sequence.tokens) - 1)
        self.counters.generated_tokens += len(tokens)
        self.counters.draft_tokens += chosen.guessed
        self.counters.accepted_tokens += chosen.accepted
        if chosen.finish_reason is None:
            self._send(sequence, chosen.output)
        else:
            self._finish(sequence, chosen.finish_reason, chosen.output, error=chosen.error)
        return len(tokens)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        """Finish every answer to a request."""
        for sequence in self._desk.unfinished(request_id):
            self._finish(sequence, reason)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        output: Output | None = None,
        *,
        error: ConchError | None = None,
    ) -> None:
        """Take a sequence out, then tell its caller: whoever hears of the end finds the blocks free."""
        if sequence.finished:
            return
        if output and sequence.request.keep_state and sequence.blocks and reason in ("stop", "length"):
            output = replace(output, state=self._stepper.state(sequence))
        self._scheduler.remove(sequence)
        self._lobby.release(sequence)
        self._close_account(sequence, reason, output, error)
        for sibling in sequence.siblings:  # they waited for its prompt
            self._finish(sibling, reason, error=error)

    def _close_account(
        self, sequence: Sequence, reason: FinishReason, output: Output | None, error: ConchError | None
    ) -> None:
        final = self._desk.leave(sequence)
        if final:
            self._watch.forget(sequence.request)
            self.counters.requests[reason] += 1
            self.counters.prompt_tokens += sequence.prompt_len
        self._send(sequence, last_output(sequence, output, reason, error, final=final))

    def _send(self, sequence: Sequence, output: Output) -> None:
        if not self._desk.send(sequence, output):
            self._end(sequence.request.id, "cancelled")

    def _fail(self, error: Exception) -> None:
        """A step went wrong: what ran in it ends. What waits is tried, unless the runner keeps failing."""
        log.error("a step failed", exc_info=error)
        for sequence in list(self._scheduler.running):
            self._finish(sequence, "error", error=_told(error))
        self.turned = time.monotonic()
        self._failures += 1
        if self._failures >= FAILURES_TOLERATED:
            raise RuntimeError(f"{self._failures} steps in a row failed, the last with: {_told(error).message}")

    def _die(self, error: BaseException) -> None:
        """Nothing can run any more: tell everyone. The scheduler may be what broke, so it is not asked."""
        why = UnavailableError(f"the engine has failed: {_told(error).message}", where="engine")
        self._desk.die(why.message)
        self._lobby.close()
        for sequence in self._desk.unfinished():
            self._close_account(sequence, "error", None, why)


def _told(error: BaseException) -> ConchError:
    """An error as callers may see it."""
    return error if isinstance(error, ConchError) else ServiceError(f"{type(error).__name__}: {error}", where="engine")
