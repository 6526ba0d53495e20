"""The engine: one thread that turns requests into tokens, a step at a time.

    submit ──> inbox ──> scheduler ──> runner ──> sampling ──> sinks
                ^  between two steps: arrivals, cancellations, deadlines   │
                └──────────────────────────────────────────────────────────┘

What a request does wrong ends that request; what a step does wrong ends those that ran in it; only a runner
that keeps failing ends the engine. Knows nothing of Triton, HTTP or text.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from conch.engine.batch import Rows, Runner
from conch.engine.config import EngineConfig
from conch.engine.request import FinishReason, Output, Request, check_request
from conch.engine.sampling import Picks, Top, choose
from conch.engine.scheduler import Scheduler
from conch.engine.sequence import Sequence
from conch.engine.stats import Counters, EngineStats
from conch.engine.watch import Watch
from conch_build.errors import ConchError, OverloadedError, RequestError, UnavailableError

log = logging.getLogger(__name__)

FAILURES_TOLERATED = 3
"""Failed steps in a row after which the runner counts as dead."""
STUCK_AFTER_S = 60.0
"""A step longer than this makes the engine unhealthy."""


class Engine:
    """Runs requests until closed. Every method may be called from any thread."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self.config = config
        self._runner = runner
        self._scheduler = Scheduler(config, runner.num_blocks, runner.tokens_per_block)
        self._counters = Counters()
        self._numbers = itertools.count()
        self._failures = 0
        self._watch = Watch()
        self._turned = time.monotonic()

        self._wake = threading.Condition()  # guards what follows
        self._live: dict[str, Sequence] = {}
        self._inbox: list[Sequence] = []
        self._withdrawn: list[Sequence] = []
        self._idle = False
        self._closing = False
        self._dead: str | None = None
        self._thread = threading.Thread(target=self._run, name="conch-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, artifact_dir: Path) -> Engine:
        """An engine over a compiled artifact, ready when this returns."""
        from conch.engine.runner import OpenVINORunner
        from conch_build.manifest import EngineManifest

        manifest = EngineManifest.load(artifact_dir)
        return cls(OpenVINORunner(artifact_dir, manifest), EngineConfig.from_manifest(manifest))

    def submit(self, request: Request, sink: Callable[[Output], None]) -> None:
        """Take a request; its outputs go to `sink`, on the engine's thread, which must not block.

        Raises RequestError for a request that cannot run, OverloadedError when the queue is full,
        UnavailableError when the engine is closed or dead.
        """
        check_request(request, self.config, self._runner.vocab_size)
        self._scheduler.check(request)
        sequence = Sequence(request, sink, next(self._numbers), self.config)
        with self._wake:
            self._check_open()
            if request.id in self._live:
                raise RequestError(f"request id {request.id!r} is in use", param="id", code="invalid_value")
            if len(self._live) >= self.config.batch_size + self.config.max_queue_size:
                raise OverloadedError(
                    f"{len(self._live)} requests run or wait already",
                    where="engine queue",
                    fix="Try again later.",
                )
            self._live[request.id] = sequence
            self._inbox.append(sequence)
            self._wake.notify()

    def cancel(self, request_id: str) -> bool:
        """End a request before the next step; False if it is not there (any more)."""
        with self._wake:
            sequence = self._live.get(request_id)
            if sequence is None:
                return False
            self._withdrawn.append(sequence)
            self._wake.notify()
            return True

    def stats(self) -> EngineStats:
        scheduler, counters = self._scheduler, self._counters
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._inbox),
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
            preemptions_total=scheduler.preemptions,
            steps_total=counters.steps,
            step_seconds_total=counters.step_seconds,
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

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The rest runs on the engine's thread.

    def _run(self) -> None:
        try:
            while self._between_steps():
                self._step()
        except BaseException as error:
            log.exception("the engine has failed")
            self._die(f"the engine has failed: {_describe(error)}")

    def _between_steps(self) -> bool:
        """Wait for work; take in arrivals, cancellations and deadlines. False when closing."""
        with self._wake:
            while not (self._scheduler.busy or self._inbox or self._withdrawn or self._closing):
                self._idle = True
                self._wake.wait()
            if self._idle:
                self._idle, self._turned = False, time.monotonic()
            arrived, self._inbox = self._inbox, []
            withdrawn, self._withdrawn = self._withdrawn, []
            closing = self._closing
        for sequence in arrived:
            self._scheduler.add(sequence)
            self._watch.add(sequence)
        for sequence in withdrawn:
            self._finish(sequence, "cancelled")
        if closing:
            for sequence in list(self._live.values()):
                self._finish(sequence, "cancelled")
            return False
        now = time.monotonic()
        for sequence in self._watch.expired(now):
            self._finish(sequence, "deadline")
        for sequence in self._watch.abandoned(now):
            self._finish(sequence, "cancelled")
        return True

    def _step(self) -> None:
        if not self._scheduler.busy:  # the last one was just cancelled
            return
        started = time.monotonic_ns()
        batch = self._scheduler.schedule()
        if not batch.slots:
            raise RuntimeError("requests wait, but none can be scheduled")
        for sequence in batch.sequences:
            if not sequence.first_scheduled_ns:
                sequence.first_scheduled_ns = started
        try:
            rows = self._runner.step(batch.slots)
            sampled = self._scheduler.advance(batch)
            picks = self._choose(rows, sampled) if sampled else Picks([])
        except Exception as error:
            self._fail(error)
            return
        self._failures = 0
        now = time.monotonic_ns()
        for row, sequence in enumerate(sampled):
            if row in picks.errors:
                self._finish(sequence, "error", error=picks.errors[row].message)
            else:
                self._accept(sequence, picks.tokens[row], picks.log_probs.get(row), now)
        self._turned = time.monotonic()
        self._counters.steps += 1
        self._counters.step_seconds += self._turned - started * 1e-9

    def _choose(self, rows: Rows | None, sampled: list[Sequence]) -> Picks:
        if rows is None or len(rows.top_ids) != len(sampled):
            raise RuntimeError("the runner did not give one row for each sequence to be sampled")
        return choose(rows, [sequence.sampler for sequence in sampled])

    def _accept(self, sequence: Sequence, token: int, details: tuple[float, Top] | None, now_ns: int) -> None:
        """The next token of a sequence is known: append it, see whether the answer is over, send it."""
        if token in sequence.stop.end_ids:
            self._finish(sequence, "stop")
            return
        sequence.tokens.append(token)
        if not sequence.sampler.plain:
            sequence.sampler.observe(token)
        sequence.first_token_ns = sequence.first_token_ns or now_ns
        sequence.last_token_ns = now_ns
        self._counters.generated_tokens += 1
        log_probs, top = None, None
        if details is not None:
            log_probs = (details[0],)
            top = (details[1],) if sequence.request.sampling.top_log_probs else None
        reason = sequence.stop.after(sequence.tokens, sequence.produced)
        if reason is None:
            self._send(sequence, Output(sequence.request.id, (token,), log_probs, top))
        else:
            self._finish(sequence, reason, (token,), log_probs, top)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        tokens: tuple[int, ...] = (),
        log_probs: tuple[float, ...] | None = None,
        top: tuple[Top, ...] | None = None,
        error: str | None = None,
    ) -> None:
        """Take a sequence out, then tell its caller: whoever hears of the end finds the blocks free."""
        if sequence.finished:
            return
        self._scheduler.remove(sequence)
        self._close_account(sequence, reason)
        usage = sequence.usage()
        self._send(sequence, Output(sequence.request.id, tokens, log_probs, top, reason, error, usage))

    def _close_account(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finished = True
        self._watch.forget(sequence)
        with self._wake:
            del self._live[sequence.request.id]
        self._counters.requests[reason] += 1
        self._counters.prompt_tokens += sequence.prompt_len

    def _send(self, sequence: Sequence, output: Output) -> None:
        try:
            sequence.sink(output)
        except Exception:
            log.exception("the sink of request %s failed: it is cancelled", sequence.request.id)
            sequence.sink = _nobody
            self._finish(sequence, "cancelled")

    def _fail(self, error: Exception) -> None:
        """A step went wrong: what ran in it ends. What waits is tried, unless the runner keeps failing."""
        log.error("a step failed", exc_info=error)
        for sequence in list(self._scheduler.running):
            self._finish(sequence, "error", error=_describe(error))
        self._turned = time.monotonic()
        self._failures += 1
        if self._failures >= FAILURES_TOLERATED:
            raise RuntimeError(f"{self._failures} steps in a row failed, the last with: {_describe(error)}")

    def _die(self, why: str) -> None:
        """Nothing can run any more: tell everyone. The scheduler may be what broke, so it is not asked."""
        with self._wake:
            self._dead = why
            live = list(self._live.values())
        for sequence in live:
            self._close_account(sequence, "error")
            output = Output(sequence.request.id, finish_reason="error", error=why, usage=sequence.usage())
            self._send(sequence, output)

    def _check_open(self) -> None:
        if self._dead is not None:
            raise UnavailableError(self._dead, where="engine", fix="Restart the server.")
        if self._closing:
            raise UnavailableError("is closed", where="engine")


def _nobody(output: Output) -> None:
    """Where the outputs of a request go whose own sink has failed."""


def _describe(error: BaseException) -> str:
    return error.message if isinstance(error, ConchError) else f"{type(error).__name__}: {error}"
