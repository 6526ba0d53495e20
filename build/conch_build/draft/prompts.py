"""What the target is asked while a draft is made: short prompts of many kinds, each with its own way of sampling.

Prompts about a topic are multiplied by the topics. One prompt in ten and one topic in ten are held out: acceptance
is reported on these alone. Between the chats stand beginnings of the calibration texts, to be continued as they
are. Knows nothing of how answers are made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from conch_build.calibration import builtin_texts

PROMPTS = Path(__file__).with_name("prompts.txt")
TOPICS = Path(__file__).with_name("topics.txt")
TOPIC = "{topic}"
HELD_OUT_EVERY = 10

TEMPERATURES = (0.0, 0.7)
"""Of the answers, in turn: greedy ones repeat themselves, sampled ones show what else the target knows."""
_TEXT_EVERY = 8
_TEXT_TOKENS = (8, 48)
"""Shortest and longest beginning of a calibration text."""


@dataclass(frozen=True)
class Prompt:
    """One prompt in token ids. The same `number` is the same prompt on every run."""

    number: int
    ids: tuple[int, ...]
    temperature: float
    """0 is greedy."""


def prompts(tokenizer: Any, start: int = 0, *, held_out: bool) -> Iterator[Prompt]:
    """Prompts without end, from number `start`; `tokenizer` is transformers' own.

    The model's chat template renders them; a model without one gets them as plain text.
    """
    chats = _part(_lines(PROMPTS), held_out)
    topics = _part(_lines(TOPICS), held_out)
    texts = [tokenizer(text)["input_ids"] for text in _part(builtin_texts(), held_out)]
    for number in count(start):
        noise = random.Random(2 * number + held_out)
        if number % _TEXT_EVERY == _TEXT_EVERY - 1:
            text = noise.choice(texts)
            ids = text[: noise.randint(*_TEXT_TOKENS)]
        else:
            chat = noise.choice(chats).replace(TOPIC, noise.choice(topics))
            ids = _rendered(tokenizer, chat)
        yield Prompt(number, tuple(ids), TEMPERATURES[number % len(TEMPERATURES)])


def _rendered(tokenizer: Any, chat: str) -> list[int]:
    if not tokenizer.chat_template:
        return list(tokenizer(chat)["input_ids"])
    messages = [{"role": "user", "content": chat}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _part(items: list[str], held_out: bool) -> list[str]:
    return [item for index, item in enumerate(items) if (index % HELD_OUT_EVERY == 0) == held_out]
