"""A stand-in for TensorRT-LLM's LLM API that needs no GPU: its names and signatures, and a model that counts.

After token n comes n + 1; with an adapter n + its number. Everything else is as the real package documents it: results
repeat what they have said, an end id is part of them, unknown arguments are errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.sampling_params import SamplingParams

__version__ = "1.2.1"
__all__ = ["LLM", "SamplingParams"]

VOCABULARY = 1000
STEP_SECONDS = 0.002


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    request_perf_metrics: Any = None


@dataclass
class Metrics:
    """Of a request, by any of upstream's names."""

    num_new_allocated_blocks: int = 2
    num_reused_blocks: int = 1
    arrival_time: timedelta = timedelta(seconds=1)
    first_scheduled_time: timedelta = timedelta(seconds=2)
    first_token_time: timedelta = timedelta(seconds=3)
    last_token_time: timedelta = timedelta(seconds=4)
    total_draft_tokens: int = 8
    total_accepted_draft_tokens: int = 6

    @property
    def kv_cache_metrics(self) -> Metrics:
        return self

    timing_metrics = speculative_decoding = kv_cache_metrics


class RequestOutput:
    """Iterated once: after each step it holds all that there is."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams, lora: LoRARequest | None) -> None:
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.cached_tokens = 3
        self._llm = llm
        self._prompt = prompt
        self._params = params
        self._lora = lora
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True
        self._llm.aborted += 1

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(STEP_SECONDS)
        if self._prompt[0] == 667:
            await asyncio.sleep(600)
        if self._prompt[0] == 666:
            raise RuntimeError("CUDA out of memory")
        output, params = self.outputs[0], self._params
        for _ in range(self._llm.interval):
            self._add()
            if output.finish_reason is not None:
                break
        if self._aborted:
            output.finish_reason = "cancelled"
        self.finished = output.finish_reason is not None
        if self.finished and params.return_perf_metrics:
            output.request_perf_metrics = Metrics()
        return self

    def _add(self) -> None:
        output, params = self.outputs[0], self._params
        token = self._next((self._prompt + output.token_ids)[-1])
        output.token_ids.append(token)
        if params.logprobs:
            ranked = [token, *((token + step) % VOCABULARY for step in range(1, params.logprobs))]
            output.logprobs.append({other: Logprob(-0.5 - rank, rank + 1) for rank, other in enumerate(ranked)})
        if token == params.end_id and not params.ignore_eos:
            output.finish_reason = "stop"
        elif token in (params.stop_token_ids or ()):
            output.finish_reason, output.stop_reason = "stop", token
            if not params.include_stop_str_in_output:
                output.token_ids.pop()
        elif len(output.token_ids) >= params.max_tokens:
            output.finish_reason = "length"

    def _next(self, token: int) -> int:
        token = (token + (self._lora.lora_int_id if self._lora else 1)) % VOCABULARY
        bias = self._params.embedding_bias
        while bias is not None and float(bias[token]) < -1e30:
            token = (token + 1) % VOCABULARY
        return token


class _Executor:
    def __init__(self) -> None:
        self.down = False

    def is_shutdown(self) -> bool:
        return self.down


class LLM:
    def __init__(self, model: str, tokenizer: str | None = None, stream_interval: int = 1, **kwargs: Any) -> None:
        assert not isinstance(kwargs.get("speculative_config"), dict), "extra_forbidden"
        self.model = model
        self.arguments = kwargs
        self.interval = stream_interval
        self.aborted = 0
        self.asked: list[tuple[list[int], SamplingParams, LoRARequest | None]] = []
        self._executor = _Executor()

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        assert sampling_params is not None and streaming
        asyncio.get_running_loop()  # as the real one, which else cannot be iterated
        if inputs[0] == 665:
            raise ValueError("prompt length (1) is refused")
        self.asked.append((inputs, sampling_params, lora_request))
        return RequestOutput(self, inputs, sampling_params, lora_request)

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        if self.asked[-1][0][0] == 667:
            return
        yield {
            "iter": len(self.asked),
            "timestamp": time.time(),
            "numQueuedRequests": 1,
            "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 40, "freeNumBlocks": 60, "tokensPerBlock": 64},
            "inflightBatchingStats": {"numContextRequests": 1, "numPausedRequests": 0, "numScheduledRequests": 2},
        }

    def shutdown(self) -> None:
        self._executor.down = True
