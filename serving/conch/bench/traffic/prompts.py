"""What sessions say: prompts of drawn lengths, prefixes that are shared, turns, models by weight, some cancelled.

All of it follows from a seed, so that two sides are asked the same. Knows nothing of servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from conch.bench.traffic.lengths import Lengths
from conch.bench.traffic.loads import Session, Turn
from conch.bench.traffic.record import Content


class Writer(Protocol):
    """Writes prompts."""

    def write(self, page: str, tokens: int) -> Content:
        """About `tokens` tokens, the same for the same page and of other words for another."""

    def join(self, prefix: Content, own: Content) -> Content: ...


class Stories:
    """One short prompt for everyone, whose length is what it is."""

    def write(self, page: str, tokens: int) -> Content:
        return f"Write a story about number {page} and a dragon."

    def join(self, prefix: Content, own: Content) -> Content:
        return f"{prefix}{own}"


@dataclass(frozen=True)
class Words:
    """Text where no tokenizer is at hand: a word has `tokens_per_word`, and `overhead` tokens come on top of a prompt,
    as measured on the server."""

    texts: Sequence[str]
    tokens_per_word: float = 1.3
    overhead: float = 0.0

    def write(self, page: str, tokens: int) -> Content:
        count = max(round((tokens - self.overhead) / self.tokens_per_word), 1)
        return " ".join(self.words(page, count))

    def words(self, page: str, count: int) -> list[str]:
        chance = random.Random(page)
        words = [f"Page {page}."]
        while len(words) < count:
            words += chance.choice(self.texts).split()
        return words[:count]

    def join(self, prefix: Content, own: Content) -> Content:
        return f"{prefix} {own}"


class Ids:
    """Exact lengths in token ids, cut out of texts that were encoded once: a prompt is asked for while others run."""

    def __init__(self, texts: Sequence[str], encode: Callable[[str], list[int]]) -> None:
        self.encode = encode
        self.corpus = encode("\n\n".join(texts))

    def write(self, page: str, tokens: int) -> Content:
        ids = self.encode(f"Page {page}.")
        start = random.Random(page).randrange(len(self.corpus))
        while len(ids) < tokens:
            ids += self.corpus[start : start + tokens - len(ids)]
            start = 0
        return tuple(ids[:tokens])

    def join(self, prefix: Content, own: Content) -> Content:
        assert isinstance(prefix, tuple) and isinstance(own, tuple)
        return (*prefix, *own)


@dataclass(frozen=True)
class Decoded:
    """Text of given lengths by a tokenizer, for endpoints that take no ids."""

    ids: Ids
    decode: Callable[[Sequence[int]], str]

    def write(self, page: str, tokens: int) -> Content:
        content = self.ids.write(page, tokens)
        assert isinstance(content, tuple)
        return self.decode(content)

    def join(self, prefix: Content, own: Content) -> Content:
        return f"{prefix}{own}"


@dataclass(frozen=True)
class Mix:
    """What requests look like. `models`: name -> weight."""

    models: Mapping[str, float]
    input: Lengths
    output: Lengths
    shared_prefix: int = 0
    """Tokens at the start of every session, on top of its own."""
    turns: int = 1
    cancel_share: float = 0.0
    """Of the requests that the client leaves, after a part of the answer."""
    seed: int = 0

    def session(self, number: int, writer: Writer) -> Session:
        chance = random.Random(f"{self.seed}-{number}")
        model = chance.choices(list(self.models), list(self.models.values()))[0]
        turns = []
        for turn in range(self.turns):
            page = f"{self.seed}-{number}-{turn}" if self.turns > 1 else f"{self.seed}-{number}"
            content = writer.write(page, self.input.draw(chance))
            if self.shared_prefix and turn == 0:
                content = writer.join(writer.write(f"shared-{self.seed}", self.shared_prefix), content)
            turns.append(self._turn(content, self.output.draw(chance), chance))
        return Session(number, model, tuple(turns))

    def _turn(self, content: Content, max_tokens: int, chance: random.Random) -> Turn:
        leaves = chance.random() < self.cancel_share and max_tokens > 1
        return Turn(content, max_tokens, chance.randint(1, max_tokens - 1) if leaves else None)
