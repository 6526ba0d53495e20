"""What every rung is asked: prompts that begin alike and go on differently, of mixed lengths, greedy and never ended
early. Knows nothing of who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conch.bench.workloads import Texts

SHARED_TOKENS = 64
"""What all prompts of a round begin with, as a system prompt."""
KINDS = ((16, 24), (32, 16), (64, 12), (160, 8))
"""Tokens of a prompt behind the shared ones, tokens of the answer. Any round is made of all of them alike."""
LONGEST_PROMPT = SHARED_TOKENS + max(own for own, _ in KINDS)
LONGEST = max(SHARED_TOKENS + own + answer for own, answer in KINDS)
"""Tokens of a request."""


@dataclass(frozen=True)
class Ask:
    prompt: tuple[int, ...]
    max_tokens: int
    adapter: str | None = None


@dataclass(frozen=True)
class Job:
    """One round of one rung: so many at once, each followed by the next."""

    asks: tuple[Ask, ...]
    at_once: int


def asks(texts: Texts, chapter: str, count: int, adapters: Sequence[str] = ()) -> tuple[Ask, ...]:
    """`count` requests; those of other chapters share no KV block with them. `adapters`: asked in turn."""
    shared = texts.prompt(chapter, SHARED_TOKENS)
    found = []
    for number in range(count):
        own, answer = KINDS[number % len(KINDS)]
        prompt = (*shared, *texts.prompt(f"{chapter}-{number}", own))
        found.append(Ask(prompt, answer, adapters[number // len(KINDS) % len(adapters)] if adapters else None))
    return tuple(found)


def texts_of(tokenizer_file: str) -> Texts:
    """Built-in texts, cut by the checkpoint's own tokenizer."""
    from tokenizers import Tokenizer

    from conch_build.quality.judge import builtin_texts

    tokenizer = Tokenizer.from_file(tokenizer_file)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return Texts(builtin_texts(), encode)


def as_dict(job: Job) -> dict[str, Any]:
    """As a worker reads it."""
    return {"at_once": job.at_once, "asks": [[ask.prompt, ask.max_tokens, ask.adapter] for ask in job.asks]}


def job_of(data: dict[str, Any]) -> Job:
    found = tuple(Ask(tuple(prompt), max_tokens, adapter) for prompt, max_tokens, adapter in data["asks"])
    return Job(found, data["at_once"])
