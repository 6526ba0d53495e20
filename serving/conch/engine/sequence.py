"""One answer on its way through the engine: its tokens, its KV blocks, its times. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from conch.engine.batch import Slot
from conch.engine.blocks import Digest, chain
from conch.engine.config import EngineConfig
from conch.engine.ngrams import NgramIndex
from conch.engine.request import Output, Request, Usage
from conch.engine.sampling import Sampler, Top
from conch.engine.state import KvState
from conch.engine.stops import StopRule

Sink = Callable[[Output], None]


class Sequence:
    """`tokens` is prompt and answer; the first `past` of them have their keys and values in `blocks`."""

    __slots__ = (
        "accepted_tokens",
        "arrival_ns",
        "arriving",
        "blocks",
        "cached_tokens",
        "digests",
        "draft",
        "draft_past",
        "draft_tokens",
        "finished",
        "first_scheduled_ns",
        "first_token_ns",
        "index",
        "last_token_ns",
        "new_blocks",
        "ngrams",
        "past",
        "prompt_len",
        "prompt_log_probs",
        "published",
        "rank",
        "request",
        "reused_blocks",
        "salt",
        "sampler",
        "siblings",
        "singles_from",
        "sink",
        "slot",
        "stop",
        "tokens",
    )

    def __init__(self, request: Request, sink: Sink, number: int, config: EngineConfig, index: int = 0) -> None:
        sampling = request.sampling
        end_ids = config.end_ids if sampling.end_ids is None else sampling.end_ids
        self.request = request
        self.index = index
        """Which of the request's answers this is."""
        self.siblings: list[Sequence] = []
        """The other answers to this prompt, as long as they wait for it to be computed."""
        self.sink = sink
        self.rank = (-request.priority, number)
        """Lower goes first: by priority, then by arrival."""
        self.tokens = [int(token) for token in request.prompt]
        self.prompt_len = len(self.tokens)
        self.past = 0
        self.blocks: list[int] = []
        self.salt: Digest = b""
        """What decides keys and values beside the tokens."""
        self.digests: list[Digest] = []
        """Of the full blocks, as far as they were needed."""
        self.arriving: KvState | None = request.state
        """What its first blocks are to hold, until it has blocks."""
        self.published = 0
        """So many of `blocks` are known to the pool by their digests."""
        self.singles_from = 0
        """Tokens from here on are computed as single ones."""
        self.slot = Slot([], 0, self.blocks, 0)
        self.draft: list[int] = []
        """Tokens guessed to follow `tokens`, to be verified by the next step."""
        self.draft_past = 0
        """As `past`, in the draft model's caches."""
        self.ngrams: NgramIndex | None = None
        self.sampler = Sampler(sampling, self.tokens, end_ids, index)
        for token in request.state.answer if request.state else ():
            self.tokens.append(token)
            self.sampler.observe(token)
        self.stop = StopRule(end_ids, sampling.stop_words, sampling.min_tokens, request.max_tokens)
        self.finished = False
        self.prompt_log_probs: list[tuple[float, Top]] = []
        self.cached_tokens = self.new_blocks = self.reused_blocks = 0
        self.draft_tokens = self.accepted_tokens = 0
        self.arrival_ns = time.monotonic_ns()
        self.first_scheduled_ns = self.first_token_ns = self.last_token_ns = 0

    @property
    def produced(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.prompt_len

    @property
    def missing(self) -> int:
        """Tokens still to be computed before the next one can be chosen: 1 while decoding."""
        return len(self.tokens) - self.past

    def digest(self, count: int, tokens_per_block: int) -> list[Digest]:
        """Digests of the first `count` blocks, all of them full."""
        for index in range(len(self.digests), count):
            parent = self.digests[-1] if self.digests else self.salt
            self.digests.append(chain(parent, self.tokens[index * tokens_per_block : (index + 1) * tokens_per_block]))
        return self.digests[:count]

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_len,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.produced,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            arrival_ns=self.arrival_ns,
            first_scheduled_ns=self.first_scheduled_ns,
            first_token_ns=self.first_token_ns,
            last_token_ns=self.last_token_ns,
            new_blocks=self.new_blocks,
            reused_blocks=self.reused_blocks,
        )
