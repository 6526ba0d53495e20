"""The only door to the engine: one prompt in, pieces of an answer out. Knows nothing of OpenAI's shapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from prometheus_client import Counter

from conch.client import AsyncClient, Delta, Sampling
from conch.gateway.answers.forks import Stream, forked
from conch.gateway.answers.logprobs import TokenLogProb, entries, prompt_entries
from conch.gateway.answers.stops import StopMatcher
from conch.gateway.prompts.tokenizer import Tokenizer
from conch.gateway.routing.disaggregated import Disaggregated, is_split
from conch.gateway.routing.pool import Pool
from conch.gateway.routing.routed import Routed
from conch.gateway.settings import ModelSettings, Server
from conch.gateway.watching.metrics import Watch
from conch.text import Detokenizer, IdDecoder
from conch_build.errors import CancelledError, ConchError, NotFoundError, UnavailableError, UnsupportedError

T = TypeVar("T")


@dataclass(slots=True)
class Piece:
    """Text that is certain, with the log probabilities of the tokens since the last piece."""

    text: str
    log_probs: list[TokenLogProb]
    finish_reason: str | None


class Answer:
    """One answer in the making: `async with answer: async for piece in answer`. Leaving cancels.

    `prompt_tokens`, `completion_tokens` and what follows them are right once the last piece has come. Of several
    answers to one prompt only the first counts the prompt.
    """

    def __init__(
        self,
        stream: Stream,
        detokenizer: Detokenizer,
        prompt: Sequence[int],
        *,
        stops: Sequence[str],
        min_tokens: int,
        watch: Watch,
        server: Routed[TritonDoor] | Disaggregated[TritonDoor],
    ) -> None:
        self.prompt_tokens = len(prompt)
        self._prompt = prompt
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.prefill_share: float | None = None
        """Of its time in the engine, what came before its first token, where the engine tells."""
        self.prompt_log_probs: list[TokenLogProb] | None = None
        """Of the prompt's tokens but the first, where they were asked for."""
        self.finish_reason: str | None = None
        self._stream = stream
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        self._watch = watch
        self._server = server
        self._log_probs: list[TokenLogProb] = []

    @property
    def server(self) -> str:
        """Who makes it."""
        return self._server.server

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Piece:
        if self.finish_reason is not None:
            raise StopAsyncIteration
        text = ""
        while not text and self.finish_reason is None:
            try:
                delta = await self._stream.__anext__()
            except NotFoundError as error:
                raise (error if error.param else _not_loaded()) from None
            text = self._taken(delta)
            if delta.finish_reason is not None:
                self.cached_tokens = delta.cached_tokens if self.prompt_tokens else 0
                self.draft_tokens, self.accepted_tokens = delta.draft_tokens, delta.accepted_tokens
                self.prefill_share = delta.prefill_share
                if self.finish_reason is None:
                    text += self._rest()
                    # The rest may complete a stop string, which has then set the reason.
                    self.finish_reason = self.finish_reason or delta.finish_reason
        log_probs, self._log_probs = self._log_probs, []
        return Piece(text, log_probs, self.finish_reason)

    def _taken(self, delta: Delta) -> str:
        """The new text of a delta. Of several tokens those behind a stop string were never part of the answer."""
        before = self.completion_tokens
        if delta.prompt_log_probs is not None:
            self.prompt_log_probs = prompt_entries(self._prompt, delta)
        scores = entries(delta) if delta.log_probs is not None else []
        text = ""
        for size in [len(delta.tokens)] if self._stops is None else [1] * len(delta.tokens):
            at = self.completion_tokens - before
            self.completion_tokens += size
            self._log_probs += scores[at : at + size]
            text += self._shown(self._detokenizer.push(delta.tokens[at : at + size]))
            if self.finish_reason is not None:
                break
        if self.completion_tokens > before:
            self._watch.tokens(self.completion_tokens - before)
        return text

    def _shown(self, text: str) -> str:
        """What of new text may be sent; a complete stop string ends the answer."""
        if self._stops is None or self.completion_tokens <= self._min_tokens:
            return text
        text = self._stops.push(text)
        if self._stops.matched is not None:
            self.finish_reason = "stop"
        return text

    def _rest(self) -> str:
        """All that was held back, now that the engine has ended the answer."""
        text = self._shown(self._detokenizer.flush())
        return text + self._stops.flush() if self._stops is not None else text

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.cancel()
        failed = isinstance(error, ConchError) and not isinstance(error, CancelledError)
        self._watch.end(self.finish_reason or ("error" if failed else "abort"))


class TritonDoor:
    """One Triton."""

    def __init__(self, settings: ModelSettings, server: Server) -> None:
        self.name = server.grpc_url
        self.metrics_url = server.metrics_url
        self.client = AsyncClient(server.grpc_url, backend=settings.cpp_backend)
        self._asked_for_feed = False

    async def probe(self) -> None:
        """A sign of life from the engine. Raises ServiceError, or one of its kinds, without one."""
        try:
            await self.client.probe()
            if not self._asked_for_feed:
                await self.client.use_feed()
                self._asked_for_feed = True
        except NotFoundError:
            raise _not_loaded() from None

    async def close(self) -> None:
        await self.client.close()


class Upstream:
    """The engines behind a model's Tritons, as one."""

    def __init__(self, settings: ModelSettings, tokenizer: Tokenizer, split: Counter) -> None:
        """`split`: counts what became of requests that two engines were to answer, by `outcome`."""
        self._split = split
        self._settings = settings
        doors = (TritonDoor(settings, server) for server in settings.servers if isinstance(server, Server))
        self.pool = Pool(doors, settings.capacity.kv_tokens)
        self.context_pool = Pool(
            (TritonDoor(settings, server) for server in settings.context_servers),
            settings.capacity.kv_tokens,
            optional=True,
        )
        self._built_in = settings.adapters if settings.cpp_backend else None
        self._tokenizer = tokenizer

    def join(self, server: Server) -> None:
        """Ask this one too, from now on."""
        self.pool.join(TritonDoor(self._settings, server))

    async def leave(self, grpc_url: str, seconds: float) -> None:
        """As `Pool.leave`."""
        await self.pool.leave(grpc_url, seconds)

    def answers(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        stops: Sequence[str],
        streaming: bool,
        watch: Callable[[int], Watch],
        decoder: IdDecoder | None = None,
    ) -> list[Answer]:
        """Start the `sampling.n` answers. A caller that wants them whole, and no stop string, gets each in one message.

        `watch` makes the clock of an answer that counts so many tokens of prompt; `decoder` shows other tokens
        than the tokenizer's own.
        """
        whole = not (streaming or stops)
        stream: Disaggregated[TritonDoor] | Routed[TritonDoor]
        if self.context_pool.members and is_split(prompt, sampling, self._settings.max_local_prefill_length):
            stream = Disaggregated(
                self.context_pool,
                self.pool,
                prompt,
                sampling,
                lambda door, asked, flows: door.client.open(prompt, asked, streaming=flows and not whole),
                self._split,
            )
        else:
            stream = Routed(
                self.pool,
                prompt,
                sampling.max_tokens * sampling.n,
                sampling.lora_task_id,
                lambda door: door.client.open(prompt, sampling, streaming=not whole),
            )
        return [
            Answer(
                part,
                Detokenizer(decoder or self._tokenizer.decoder),
                () if index else prompt,
                stops=stops,
                min_tokens=sampling.min_tokens or 0,
                watch=watch(0 if index else len(prompt)),
                server=stream,
            )
            for index, part in enumerate(forked(stream, sampling.n))
        ]

    async def adapters(self, command: str = "list", lora_task_id: int = 0) -> list[dict[str, Any]]:
        """Every LoRA adapter, after one was loaded or unloaded everywhere if so commanded. Raises ConchError."""
        if self._built_in is not None:
            if command != "list":
                raise UnsupportedError("the engine was built with its adapters", param="lora_name")
            idle = {"state": "loaded", "running": 0, "waiting": 0}
            return [{"name": name, "id": number, **idle} for name, number in self._built_in.items()]
        clients = [door.client for door in (*self.pool.doors, *self.context_pool.doors)]
        told = await asyncio.gather(
            *(client.adapters(command, lora_task_id) for client in clients), return_exceptions=True
        )
        there = [one for one in told if not isinstance(one, BaseException)]
        failures = [one for one in told if isinstance(one, BaseException)]
        if failures and (command != "list" or not there):  # what is asked of all must be done by all
            error = failures[0]
            if isinstance(error, NotFoundError) and error.param is None:
                raise _not_loaded()
            raise error
        return _together(there)

    async def probe(self) -> None:
        """A sign of life from one of the engines. Raises ServiceError, or one of its kinds, without one."""
        await self.pool.probe()


def _not_loaded() -> UnavailableError:
    """The caller's model exists; that Triton has none behind it is not the caller's mistake.

    What the engine itself does not find, an adapter, it names with a parameter; Triton's own failures name none.
    """
    return UnavailableError("Triton has not loaded the model")


def _together(servers: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What several servers tell of the same adapters: what runs and waits added up, loaded where one has it loaded."""
    found: dict[str, dict[str, Any]] = {}
    for adapter in (adapter for server in servers for adapter in server):
        known = found.setdefault(adapter["name"], {**adapter, "running": 0, "waiting": 0})
        known["running"] += adapter["running"]
        known["waiting"] += adapter["waiting"]
        if adapter["state"] == "loaded" or known["state"] == "unloaded":
            known["state"] = adapter["state"]
    return list(found.values())


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, Piece]]:
    """The pieces of several answers as they come, with the index of each; an error in one ends them all."""
    if len(answers) == 1:
        async with answers[0] as answer:
            async for piece in answer:
                yield 0, piece
        return
    pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue(maxsize=len(answers))

    async def forward(index: int, answer: Answer) -> None:
        async with answer:
            async for piece in answer:
                await pieces.put((index, piece))

    work = asyncio.ensure_future(all_of([forward(index, answer) for index, answer in enumerate(answers)]))
    try:
        while not (work.done() and pieces.empty()):
            waiting = asyncio.ensure_future(pieces.get())
            await asyncio.wait((waiting, work), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield waiting.result()
            else:
                waiting.cancel()
        work.result()
    finally:
        work.cancel()
        await asyncio.wait((work,))


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run concurrently; the first failure ends the others before it is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
