"""An answer of two engines: one reads the prompt and makes the first token, another one goes on from its KV blocks.

Nothing is given out before the second one has them: what fails until then is done anew by a generation engine alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic

from prometheus_client import Counter

from conch.client import Delta, Sampling
from conch.gateway.answers.forks import Stream
from conch.gateway.routing.pool import AnyDoor, Pool
from conch.gateway.routing.routed import Routed
from conch_build.errors import CancelledError, ConchError, DeadlineError, RequestError, UnavailableError

_LOOK_SECONDS = 0.5
Open = Callable[[Any, Sampling, bool], Stream]
"""Door, sampling, whether it streams."""


def is_split(prompt: Sequence[int], sampling: Sampling, local_tokens: int) -> bool:
    """Whether two engines are worth it and can do it. `local_tokens`: prompts up to that are read where answers are
    written."""
    single = sampling.n == 1 and sampling.max_tokens > 1 and not sampling.prompt_log_probs
    return single and len(prompt) > local_tokens


class Disaggregated(Generic[AnyDoor]):
    """A stream of deltas, as `Routed` is one."""

    def __init__(
        self,
        context: Pool[AnyDoor],
        generation: Pool[AnyDoor],
        prompt: Sequence[int],
        sampling: Sampling,
        open_at: Open,
        outcomes: Counter,
    ) -> None:
        """`outcomes`: counts by `outcome`: split, whole (the first token was the last), alone (done anew)."""
        self._generation = generation
        self._prompt = prompt
        self._sampling = sampling
        self._open_at = open_at
        self._outcomes = outcomes
        self._reading: Routed[AnyDoor] | None = None
        self._writing: Routed[AnyDoor] | None = None
        self._first: Delta | None = None
        self._read_elsewhere(context)

    @property
    def server(self) -> str:
        """Who answers, as far as is known."""
        at = self._writing or self._reading
        return at.server if at is not None else ""

    async def __anext__(self) -> Delta:
        if self._writing is not None and self._first is None:
            return await self._writing.__anext__()
        if self._writing is None:
            read = await self._read()
            if read is not None and read.finish_reason == "stop":
                self._count("whole")
                self._writing = self._reading
                return read
            self._first = read
            self._write(read)
        return await self._begun()

    def cancel(self) -> None:
        for part in (self._reading, self._writing):
            if part is not None:
                part.cancel()

    def _read_elsewhere(self, context: Pool[AnyDoor]) -> None:
        least = None if self._sampling.min_tokens is None else min(1, self._sampling.min_tokens)
        asked = replace(self._sampling, max_tokens=1, min_tokens=least, context_only=True)
        try:
            self._reading = self._routed(context, asked, 1, streaming=False)
        except ConchError:  # no such server now
            self._reading = None

    async def _read(self) -> Delta | None:
        """What the context engine gives; None when none can."""
        if self._reading is None:
            return None
        try:
            read = await self._while_up(self._reading)
        except (CancelledError, DeadlineError):
            raise
        except RequestError:
            raise  # it would be refused everywhere
        except ConchError:
            return None
        return read if read.context_phase or read.finish_reason == "stop" else None

    async def _while_up(self, reading: Routed[AnyDoor]) -> Delta:
        """Its delta. Raises UnavailableError when its server has gone silent: a cut network tells nobody."""
        answer = asyncio.ensure_future(reading.__anext__())
        try:
            while not (await asyncio.wait((answer,), timeout=_LOOK_SECONDS))[0]:
                if not reading.up:
                    reading.cancel()
                    raise UnavailableError("the server that read the prompt has gone silent", where=reading.server)
            return answer.result()
        finally:
            answer.cancel()

    def _write(self, read: Delta | None) -> None:
        sampling = self._sampling
        if read is not None:
            sampling = replace(sampling, context_phase=read.context_phase)
        self._writing = self._routed(self._generation, sampling, sampling.max_tokens, streaming=True)

    async def _begun(self) -> Delta:
        """The first delta of the generation engine, behind the token of the context engine."""
        assert self._writing is not None
        first, self._first = self._first, None
        if first is None:
            self._count("alone")
            return await self._writing.__anext__()
        try:
            delta = await self._writing.__anext__()
        except (CancelledError, DeadlineError):
            raise
        except ConchError:
            # The blocks did not come, or do not fit: without them it is an ordinary request.
            self._writing.cancel()
            self._write(None)
            return await self._begun()
        self._count("split")
        return _together(first, delta)

    def _routed(self, pool: Pool[AnyDoor], sampling: Sampling, tokens: int, *, streaming: bool) -> Routed[AnyDoor]:
        return Routed(
            pool,
            self._prompt,
            tokens,
            sampling.lora_task_id,
            lambda door: self._open_at(door, sampling, streaming),
        )

    def _count(self, outcome: str) -> None:
        self._outcomes.labels(outcome).inc()


def _together(first: Delta, rest: Delta) -> Delta:
    return replace(
        rest,
        tokens=(*first.tokens, *rest.tokens),
        log_probs=None if rest.log_probs is None else (*(first.log_probs or ()), *rest.log_probs),
        top=None if rest.top is None else (*(first.top or ()), *rest.top),
        cached_tokens=max(first.cached_tokens, rest.cached_tokens),
    )
