"""The engine: one thread that turns requests into tokens, a step at a time.

    submit ──> desk ──> lobby ──> scheduler ──> speculation ──> runner ──> sampling ──> sinks
                 ^    between two steps: arrivals, cancellations, deadlines        │
                 └─────────────────────────────────────────────────────────────────┘

Here is what callers see of it; `loop` is the thread. Knows nothing of Triton, HTTP or text.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

from conch.engine.adapters import Adapters
from conch.engine.batch import Runner
from conch.engine.config import EngineConfig
from conch.engine.desk import Desk
from conch.engine.guidance import Guidance
from conch.engine.lobby import Lobby
from conch.engine.loop import Loop
from conch.engine.request import Output, Request, check_request
from conch.engine.scheduler import Scheduler
from conch.engine.sequence import Sequence
from conch.engine.speculation import Speculation
from conch.engine.state import check_state
from conch.engine.stats import AdapterState, AdapterStats, EngineStats
from conch.engine.step import Stepper
from conch_build.adapter_registry import AdapterRegistry


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
        self._numbers = itertools.count()
        self._desk = Desk(config.batch_size + config.max_queue_size)
        self._lobby = Lobby(guidance, adapters, self._desk.notify)
        self._scheduler = Scheduler(config, runner.num_blocks, runner.tokens_per_block)
        stepper = Stepper(runner, self._scheduler, speculation)
        self._loop = Loop(self._desk, self._lobby, self._scheduler, stepper)
        self._thread = threading.Thread(target=self._loop.run, name="conch-engine", daemon=True)
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
        self._desk.enter(answers)

    def cancel(self, request_id: str) -> bool:
        """End a request before the next step; False if it is not there (any more)."""
        return self._desk.withdraw(request_id)

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
        scheduler, counters = self._scheduler, self._loop.counters
        return EngineStats(
            running=len(scheduler.running),
            waiting=self._desk.load - len(scheduler.running),
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
            last_step_monotonic=self._loop.turned,
        )

    def healthy(self) -> bool:
        """The thread lives, the runner works, and no step has been running for too long."""
        return self._thread.is_alive() and not self._desk.dead and not self._loop.stuck

    def close(self) -> None:
        """End every request with "cancelled" and stop the thread, after the step in progress."""
        self._desk.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._lobby.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _order(self, name: str, *, load: bool) -> None:
        self._desk.check_open()
        self._lobby.adapter(name).order(name, load=load).result()
