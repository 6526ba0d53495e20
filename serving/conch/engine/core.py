"""The engine: one thread that turns requests into tokens, a step at a time.

    submit ──> inbox ──> scheduler ──> speculation ──> runner ──> sampling ──> sinks
                ^    between two steps: arrivals, cancellations, deadlines       │
                └────────────────────────────────────────────────────────────────┘

What a request does wrong ends that request; what a step does wrong ends those that ran in it; only a runner
that keeps failing ends the engine. Knows nothing of Triton, HTTP or text.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from conch.engine.adapters import Adapters
from conch.engine.answer import choose_next, score_prompt
from conch.engine.batch import Runner
from conch.engine.config import EngineConfig
from conch.engine.guidance import Guidance
from conch.engine.lobby import Lobby
from conch.engine.request import FinishReason, Output, Request, check_request
from conch.engine.sampling import Chooser
from conch.engine.scheduler import Scheduler
from conch.engine.sequence import Sequence
from conch.engine.speculation import Speculation
from conch.engine.state import check_state
from conch.engine.stats import AdapterState, AdapterStats, Counters, EngineStats
from conch.engine.step import Step, Stepper
from conch.engine.watch import Watch
from conch_build.adapter_registry import AdapterRegistry
from conch_build.errors import (
    ConchError,
    OverloadedError,
    RequestError,
    ServiceError,
    UnavailableError,
)

log = logging.getLogger(__name__)

FAILURES_TOLERATED = 3
"""Failed steps in a row after which the runner counts as dead."""
OUTSIDE_WAIT_S = 0.05
"""How often those who wait for an adapter or a guide are looked after when nothing else runs."""
STUCK_AFTER_S = 60.0
"""A step longer than this makes the engine unhealthy."""


class Engine:
    """Runs requests until closed. Every method may be called from any thread."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        speculation: Speculation | None = None,
        adapters: Adapters | None = None,
        guidance: Guidance | None = None,
    ) -> None:
        self.config = config
        self._runner = runner
        self._speculation = speculation
        self._scheduler = Scheduler(config, runner.num_blocks, runner.tokens_per_block)
        self._stepper = Stepper(runner, self._scheduler, speculation)
        self._counters = Counters()
        self._numbers = itertools.count()
        self._failures = 0
        self._watch = Watch()
        self._turned = time.monotonic()

        self._wake = threading.Condition()  # guards what follows
        self._live: dict[str, list[Sequence]] = {}  # the unfinished answers to each request
        self._load = 0  # how many those are in all
        self._inbox: list[Sequence] = []
        self._withdrawn: list[Sequence] = []
        self._idle = False
        self._closing = False
        self._dead: str | None = None
        self._lobby = Lobby(guidance, adapters, self._notify)
        self._thread = threading.Thread(target=self._run, name="conch-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, artifact_dir: Path, registry: AdapterRegistry | None = None) -> Engine:
        """An engine over a compiled artifact, ready when this returns; it may use the adapters of `registry`."""
        from conch.engine.loading import load_engine

        return load_engine(artifact_dir, registry)

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        """Take a request; its outputs go to `sink`, on the engine's thread, which must not block.

        Raises RequestError for a request that cannot run, OverloadedError when the queue is full,
        UnavailableError when the engine is closed or dead.
        """
        check_request(request, self.config, self._runner.vocab_size)
        self._scheduler.check(request)
        if request.state is not None:
            check_state(request.state, request.prompt, request.max_tokens, self._runner)
        answers = [Sequence(request, sink, next(self._numbers), self.config, index) for index in range(request.n)]
        answers[0].siblings = answers[1:]
        self._lobby.check(answers[0])
        with self._wake:
            self._check_open()
            if request.id in self._live:
                raise RequestError(f"request id {request.id!r} is in use", param="id", code="invalid_value")
            if self._load + request.n > self.config.batch_size + self.config.max_queue_size:
                raise OverloadedError(
                    f"{self._load} answers run or wait already",
                    where="engine queue",
                    fix="Try again later.",
                )
            self._live[request.id] = answers
            self._load += request.n
            self._inbox.append(answers[0])
            self._wake.notify()

    def cancel(self, request_id: str) -> bool:
        """End a request before the next step; False if it is not there (any more)."""
        with self._wake:
            answers = self._live.get(request_id, ())
            self._withdrawn += answers
            self._wake.notify()
            return bool(answers)

    def adapters(self) -> list[AdapterState]:
        """Every LoRA adapter that requests may name, and what has become of it."""
        return self._lobby.adapters.states() if self._lobby.adapters else []

    def load_adapter(self, name: str) -> None:
        """Read an adapter's weights, which may have changed; requests use them from now on. Waits for that.

        Raises NotFoundError for an unknown one, RequestError when it does not fit: what was loaded then stays.
        """
        self._order(name, load=True)

    def unload_adapter(self, name: str) -> None:
        """New requests for it are refused; those that run end with it. Raises NotFoundError."""
        self._order(name, load=False)

    def stats(self) -> EngineStats:
        scheduler, counters = self._scheduler, self._counters
        return EngineStats(
            running=len(scheduler.running),
            waiting=self._load - len(scheduler.running),
            prefilling=sum(sequence.missing > 1 for sequence in list(scheduler.running)),
            max_batch_size=self.config.max_batch_size,
            kv_blocks_total=scheduler.pool.num_blocks,
            kv_blocks_used=scheduler.pool.used,
            kv_blocks_cached=scheduler.pool.cached,
            tokens_per_block=scheduler.tokens_per_block,
            requests_total=dict(counters.requests),
            prompt_tokens_total=counters.prompt_tokens,
            generated_tokens_total=counters.generated_tokens,
            prefix_hit_tokens_total=scheduler.prefix_hit_tokens,
            draft_tokens_total=counters.draft_tokens,
            accepted_tokens_total=counters.accepted_tokens,
            draft_seconds_total=self._speculation.seconds if self._speculation else 0.0,
            speculating=self._speculation.active if self._speculation else False,
            preemptions_total=scheduler.preemptions,
            steps_total=counters.steps,
            step_seconds_total=counters.step_seconds,
            adapters=self._lobby.adapters.stats() if self._lobby.adapters else AdapterStats(),
            last_step_monotonic=self._turned,
        )

    def healthy(self) -> bool:
        """The thread lives, the runner works, and no step has been running for too long."""
        stuck = not self._idle and time.monotonic() - self._turned > STUCK_AFTER_S
        return self._thread.is_alive() and self._dead is None and not stuck

    def close(self) -> None:
        """End every request with "cancelled" and stop the thread, after the step in progress."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._lobby.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _order(self, name: str, *, load: bool) -> None:
        self._check_open()
        self._lobby.adapter(name).order(name, load=load).result()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    # The rest runs on the engine's thread.

    def _run(self) -> None:
        try:
            while self._between_steps():
                self._step()
        except BaseException as error:
            log.exception("the engine has failed")
            self._die(error)

    def _between_steps(self) -> bool:
        """Wait for work; take in arrivals, cancellations and deadlines. False when closing."""
        with self._wake:
            while not self._has_work():
                self._idle = True
                if self._lobby.waiting:  # who waits may run out of time, or leave
                    self._wake.wait(OUTSIDE_WAIT_S)
                    break
                self._wake.wait()
            if self._idle:
                self._idle, self._turned = False, time.monotonic()
            arrived, self._inbox = self._inbox, []
            withdrawn, self._withdrawn = self._withdrawn, []
            closing = self._closing
        for sequence in arrived:
            self._watch.add(sequence.request)
            if not self._lobby.add(sequence):
                self._scheduler.add(sequence)
        for sequence in withdrawn:
            self._finish(sequence, "cancelled")
        if closing:
            for sequence in [sequence for answers in self._live.values() for sequence in answers]:
                self._finish(sequence, "cancelled")
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

    def _has_work(self) -> bool:
        news = self._inbox or self._withdrawn or self._closing
        return bool(self._scheduler.busy or news or self._lobby.busy)

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
        self._turned = time.monotonic()
        seconds = self._turned - started * 1e-9
        self._counters.steps += 1
        self._counters.step_seconds += seconds
        self._stepper.learn(step, produced, seconds)

    def _settle(self, step: Step) -> int:
        """A step was computed: account for it and choose what comes next. Returns how many tokens that were."""
        now_ns = time.monotonic_ns()
        row, produced, chooser = 0, 0, step.chooser
        for sequence, slot in step.batch:
            computed = slot.past + len(slot.tokens) - len(sequence.draft)
            self._scheduler.settle(sequence, computed)
            row += slot.rows
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
        chosen = choose_next(sequence, chooser, row)
        tokens = chosen.output.tokens
        if tokens:
            sequence.first_token_ns = sequence.first_token_ns or now_ns
            sequence.last_token_ns = now_ns
            self._scheduler.settle(sequence, len(sequence.tokens) - 1)
        self._counters.generated_tokens += len(tokens)
        self._counters.draft_tokens += chosen.guessed
        self._counters.accepted_tokens += chosen.accepted
        if chosen.finish_reason is None:
            self._send(sequence, chosen.output)
        else:
            self._finish(sequence, chosen.finish_reason, chosen.output, error=chosen.error)
        return len(tokens)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        """Finish every answer to a request."""
        for sequence in list(self._live.get(request_id, ())):
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
        output = output or _empty(sequence)
        if sequence.request.keep_state and sequence.blocks and reason in ("stop", "length"):
            output = replace(output, state=self._stepper.state(sequence))
        self._scheduler.remove(sequence)
        self._lobby.release(sequence)
        self._close_account(sequence, reason, output, error)
        for sibling in sequence.siblings:  # they waited for its prompt
            self._finish(sibling, reason, error=error)

    def _close_account(
        self, sequence: Sequence, reason: FinishReason, output: Output, error: ConchError | None
    ) -> None:
        request = sequence.request
        sequence.finished = True
        with self._wake:
            answers = self._live[request.id]
            answers.remove(sequence)
            self._load -= 1
            final = not answers
            if final:
                del self._live[request.id]
        if final:
            self._watch.forget(request)
            self._counters.requests[reason] += 1
            self._counters.prompt_tokens += sequence.prompt_len
        self._send(sequence, replace(output, finish_reason=reason, error=error, usage=sequence.usage(), final=final))

    def _send(self, sequence: Sequence, output: Output) -> None:
        try:
            sequence.sink(output)
        except Exception:
            log.exception("the sink of request %s failed: it is cancelled", sequence.request.id)
            sequence.sink = _nobody
            self._end(sequence.request.id, "cancelled")

    def _fail(self, error: Exception) -> None:
        """A step went wrong: what ran in it ends. What waits is tried, unless the runner keeps failing."""
        log.error("a step failed", exc_info=error)
        for sequence in list(self._scheduler.running):
            self._finish(sequence, "error", error=_told(error))
        self._turned = time.monotonic()
        self._failures += 1
        if self._failures >= FAILURES_TOLERATED:
            raise RuntimeError(f"{self._failures} steps in a row failed, the last with: {_told(error).message}")

    def _die(self, error: BaseException) -> None:
        """Nothing can run any more: tell everyone. The scheduler may be what broke, so it is not asked."""
        why = UnavailableError(f"the engine has failed: {_told(error).message}", where="engine")
        with self._wake:
            self._dead = why.message
            live = [sequence for answers in self._live.values() for sequence in answers]
        self._lobby.close()
        for sequence in live:
            self._close_account(sequence, "error", _empty(sequence), why)

    def _check_open(self) -> None:
        if self._dead is not None:
            raise UnavailableError(self._dead, fix="Restart the server.")
        if self._closing:
            raise UnavailableError("is closed", where="engine")


def _nobody(output: Output) -> None:
    """Where the outputs of a request go whose own sink has failed."""


def _empty(sequence: Sequence) -> Output:
    return Output(sequence.request.id, index=sequence.index)


def _told(error: BaseException) -> ConchError:
    """An error as callers may see it."""
    return error if isinstance(error, ConchError) else ServiceError(f"{type(error).__name__}: {error}", where="engine")
