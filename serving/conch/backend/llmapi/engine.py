"""`conch.engine.Engine`'s interface over the LLM API: requests are taken on any thread, one event loop answers them.

Every answer is a request of its own to the LLM API, and streams, so that stop words are seen. Knows nothing of Triton,
and of `tensorrt_llm` only what `LlmApi` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from conch.backend.llmapi.adapters import LlmAdapters, Lora
from conch.backend.llmapi.outputs import Progress, Timing, usage_of
from conch.backend.llmapi.sampling import Model, end_ids, guide_kwargs, sampling_kwargs
from conch.backend.llmapi.stats import engine_stats
from conch.engine.config import EngineConfig
from conch.engine.request import FinishReason, Output, Request, check_request
from conch.engine.stats import AdapterState, Counters, EngineStats
from conch_build.errors import (
    ConchError,
    OverloadedError,
    RequestError,
    ServiceError,
    UnavailableError,
    UnsupportedError,
)

log = logging.getLogger(__name__)

Sink = Callable[[Output], None]
_STATS_PAUSE_S = 0.25
_CLOSE_S = 60.0
STUCK_AFTER_S = 120.0
"""Without a token and without a step, while somebody waits, for so long: it has died without a word."""


class LlmApi(Protocol):
    """The package behind it. `generate` is called on the event loop; what it gives is iterated there."""

    def generate(
        self, prompt: list[int], sampling: Mapping[str, Any], guide: Mapping[str, Any] | None, lora: Lora | None
    ) -> Any: ...

    def stats(self) -> AsyncIterator[Mapping[str, Any]]:
        """Records of steps until none comes for a while."""
        ...

    def alive(self) -> bool: ...

    def shutdown(self) -> None: ...


class _Answer:
    """One answer on its way. Only the event loop touches it once it runs."""

    def __init__(self, request: Request, sink: Sink, progress: Progress, index: int) -> None:
        self.request = request
        self.sink = sink
        self.progress = progress
        self.index = index
        self.timing = Timing(time.monotonic_ns())
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.ended: FinishReason | None = None

    def end(self, reason: FinishReason) -> None:
        """Give it up, for this reason. A task that has not begun sees it then: cancelled, it would never begin."""
        self.ended = self.ended or reason
        if self.task is not None and self.begun:
            self.task.cancel()


class LlmApiEngine:
    """Ready to work when made; `speculates`: whether tokens are guessed."""

    def __init__(
        self,
        api: LlmApi,
        config: EngineConfig,
        model: Model,
        adapters: LlmAdapters,
        *,
        tokens_per_block: int = 32,
        speculates: bool = False,
    ) -> None:
        self.config = config
        self._api = api
        self._model = model
        self._adapters = adapters
        self._tokens_per_block = tokens_per_block
        self._speculates = speculates
        self._live: dict[str, list[_Answer]] = {}
        self._lock = threading.Lock()
        self._counters = Counters()
        self._prefix_hits = 0
        self._step: Mapping[str, Any] = {}
        self._turned = time.monotonic()
        self._closing = False
        self._watching: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conch-llmapi", daemon=True)
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> None:
        """Take a request; its outputs go to `sink`, on the event loop's thread, which must not block.

        Raises RequestError for a request that cannot run, OverloadedError when the queue is full, UnavailableError when
        the engine is closed or dead.
        """
        check_request(request, self.config, self._model.vocab_size)
        if request.keep_state or request.state is not None:
            raise UnsupportedError(
                "the LLM API's KV blocks are handed over by `trtllm-serve`, not by Triton", param="context_phase_params"
            )
        sampling = [sampling_kwargs(request, self._model, index) for index in range(request.n)]
        guide = guide_kwargs(request.sampling.guide, self._model) if request.sampling.guide else None
        ends = end_ids(request.sampling, self._model)
        answers = [_Answer(request, sink, Progress(request, ends, i), i) for i in range(request.n)]
        with self._lock:
            self._check_open()
            if request.id in self._live:
                raise RequestError(f"request id {request.id!r} is in use", param="id", code="invalid_value")
            load = sum(map(len, self._live.values()))
            if load + request.n > self.config.batch_size + self.config.max_queue_size:
                raise OverloadedError(
                    f"{load} answers run or wait already", where="engine queue", fix="Try again later."
                )
            lora = self._adapters.hold(request.adapter) if request.adapter is not None else None
            if not load:
                self._turned = time.monotonic()
            self._live[request.id] = answers
        for answer, kwargs in zip(list(answers), sampling, strict=True):
            self._loop.call_soon_threadsafe(self._start, answer, kwargs, guide, lora)

    def cancel(self, request_id: str) -> bool:
        """End a request; False if it is not there (any more)."""
        with self._lock:
            answers = list(self._live.get(request_id, ()))
        for answer in answers:
            self._loop.call_soon_threadsafe(answer.end, "cancelled")
        return bool(answers)

    def adapters(self) -> list[AdapterState]:
        """Every LoRA adapter that requests may name, and what has become of it."""
        return self._adapters.states()

    def load_adapter(self, name: str) -> None:
        """Raises NotFoundError for an unknown one, RequestError when its files are not there."""
        self._adapters.load(name)

    def unload_adapter(self, name: str) -> None:
        """Raises NotFoundError."""
        self._adapters.unload(name)

    def stats(self) -> EngineStats:
        with self._lock:
            live = sum(map(len, self._live.values()))
        return engine_stats(
            live,
            self._counters,
            self._step,
            max_batch_size=self.config.max_batch_size,
            tokens_per_block=self._tokens_per_block,
            prefix_hit_tokens=self._prefix_hits,
            speculating=self._speculates,
            adapters=self._adapters.stats(),
            last_step=self._turned,
        )

    def healthy(self) -> bool:
        """It can be asked, and makes progress with what it was asked."""
        stuck = bool(self._live) and time.monotonic() - self._turned > STUCK_AFTER_S
        return self._thread.is_alive() and not self._closing and self._api.alive() and not stuck

    def close(self) -> None:
        """End every request with "cancelled" and shut the LLM API down."""
        with self._lock:
            self._closing = True
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop).result(_CLOSE_S)
        self._api.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    def _start(
        self, answer: _Answer, sampling: Mapping[str, Any], guide: Mapping[str, Any] | None, lora: Lora | None
    ) -> None:
        answer.task = self._loop.create_task(self._run(answer, sampling, guide, lora))
        if self._watching is None:  # not before: the LLM API has no statistics until something was asked
            self._watching = self._loop.create_task(self._watch())
        if answer.request.deadline is not None:
            self._loop.call_later(max(0.0, answer.request.deadline - time.monotonic()), answer.end, "deadline")

    async def _run(
        self, answer: _Answer, sampling: Mapping[str, Any], guide: Mapping[str, Any] | None, lora: Lora | None
    ) -> None:
        result: Any = None
        last, reason, error = Output(answer.request.id, index=answer.index), None, None
        answer.begun = True
        try:
            if answer.ended is not None:
                raise asyncio.CancelledError
            result = self._api.generate(list(answer.request.prompt), sampling, guide, lora)
            async for _ in result:
                last = answer.progress.take(result.outputs[0])
                self._note(answer, last)
                if (reason := answer.progress.finish_reason) is not None:
                    break
                if last.tokens:
                    answer.sink(last)
                    last = Output(answer.request.id, index=answer.index)
            reason = reason or "length"
        except asyncio.CancelledError:
            reason = answer.ended or "cancelled"
        except Exception as broken:
            reason, error = "error", _told(broken, answer.request)
        finally:
            if result is not None and not result.finished:
                with contextlib.suppress(Exception):
                    result.abort()
        self._finish(answer, last, reason, error, result)

    def _note(self, answer: _Answer, output: Output) -> None:
        now = time.monotonic_ns()
        self._turned = time.monotonic()
        if output.tokens:
            first = answer.timing.first_token_ns or now
            answer.timing = replace(answer.timing, first_token_ns=first, last_token_ns=now)
        self._counters.generated_tokens += len(output.tokens)

    def _finish(
        self, answer: _Answer, output: Output, reason: FinishReason, error: ConchError | None, result: Any
    ) -> None:
        """Take an answer out, then tell its caller."""
        request = answer.request
        with self._lock:
            answers = self._live[request.id]
            answers.remove(answer)
            final = not answers
            if final:
                del self._live[request.id]
        usage = usage_of(request, answer.progress.produced, answer.timing, result)
        self._counters.draft_tokens += usage.draft_tokens
        self._counters.accepted_tokens += usage.accepted_tokens
        self._prefix_hits += usage.cached_tokens
        if final:
            self._counters.requests[reason] += 1
            self._counters.prompt_tokens += len(request.prompt)
            if request.adapter is not None:
                self._adapters.release(request.adapter)
        answer.sink(replace(output, finish_reason=reason, error=error, usage=usage, final=final))

    async def _watch(self) -> None:
        """Keep the record of the last step."""
        told = False
        while True:
            try:
                async for record in self._api.stats():
                    self._step = record
                    self._turned = time.monotonic()
            except Exception:
                if not told:
                    log.exception("TensorRT-LLM gives no statistics: metrics of the KV cache stay as they are")
                told = True
            await asyncio.sleep(_STATS_PAUSE_S)

    async def _wind_up(self) -> None:
        live = [answer for answers in self._live.values() for answer in answers]
        for answer in live:
            answer.end("cancelled")
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(answer.task for answer in live if answer.task is not None), return_exceptions=True)

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError("is closed", where="engine")
        if not self._api.alive():
            raise UnavailableError("TensorRT-LLM has shut down", where="engine", fix="Restart the server.")


def _told(error: Exception, request: Request) -> ConchError:
    """An error as callers may see it. TensorRT-LLM calls what is wrong with one request ValueError or RequestError."""
    if isinstance(error, ConchError):
        return error
    said = f"TensorRT-LLM: {error}"
    if isinstance(error, ValueError) or type(error).__name__ == "RequestError":
        return RequestError(said, param="guided_decoding_guide" if request.sampling.guide else None)
    return ServiceError(f"{type(error).__name__}: {error}", where="engine")
