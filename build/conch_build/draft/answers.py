"""The target's own answers, with what it thought of every token: what a draft learns from, kept on disk.

A folder holds shards, each written whole or not at all, so a killed collection goes on behind the last one.
Knows nothing of the model that learns, nor of the engine that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from conch_build.console import Progress
from conch_build.draft.prompts import Prompt
from conch_build.errors import StoreError

SHARD_ANSWERS = 32
"""Answers of one shard: a kill loses at most these, and those that were under way."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What the target wrote after a prompt, and its best guesses at each token."""

    prompt: Prompt
    tokens: NDArray[np.int32]
    """[n] the end token included, if it was reached."""
    top_ids: NDArray[np.int32]
    """[n, K] the K best tokens, best first."""
    top_log_probs: NDArray[np.float32]
    """[n, K] their log probabilities, at temperature 1."""


Generate = Callable[[Iterator[Prompt], int], Generator[Answer, None, None]]
"""Answers of at most so many tokens, as they are finished; asks for prompts when it has room, until it is closed."""


class Answers:
    """The answers in a folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> list[Answer]:
        return [answer for shard in self._shards() for answer in _unpacked(_arrays(shard))]

    @property
    def seconds(self) -> float:
        """How long collecting them has taken."""
        return sum(float(_arrays(shard, "seconds")["seconds"]) for shard in self._shards())

    def append(self, answers: list[Answer], seconds: float) -> None:
        """Write a shard: `answers`, which took `seconds`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(shard.stem) for shard in self._shards()), default=-1)
        scratch = self._folder / f".{number:05}.npz"
        np.savez(scratch, **_packed(answers), seconds=np.float64(seconds))
        scratch.rename(self._folder / f"{number:05}.npz")

    def collect(
        self,
        generate: Generate,
        prompts: Callable[[int], Iterator[Prompt]],
        max_tokens: int,
        seconds: float,
        label: str,
    ) -> None:
        """Go on until `seconds` in all have been spent, with at least one answer more.

        `prompts` gives the prompts from a number on; what is in the folder already counts.
        """
        spent = self.seconds
        if spent >= seconds:
            return
        start = 1 + max((answer.prompt.number for answer in self.load()), default=-1)
        started = shard_started = time.monotonic()
        done: list[Answer] = []
        with Progress(f"{label}, seconds", round(seconds)) as progress:
            progress.advance(int(spent))
            with closing(generate(prompts(start), max_tokens)) as answers:
                for answer in answers:
                    done.append(answer)
                    now = time.monotonic()
                    over = spent + now - started >= seconds
                    if over or len(done) == SHARD_ANSWERS:
                        self.append(done, now - shard_started)
                        done, shard_started = [], now
                    progress.advance(int(min(spent + now - started, seconds)) - progress.done)
                    if over:
                        break

    def _shards(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]*.npz"))


def token_weights(answers: Iterable[Answer], vocab_size: int) -> NDArray[np.float64]:
    """[vocab_size] how much the target uses each token: the probability it gives it, summed over the answers."""
    weights = np.zeros(vocab_size)
    for answer in answers:
        np.add.at(weights, answer.top_ids, np.exp(answer.top_log_probs))
    return weights


def _packed(answers: list[Answer]) -> dict[str, Any]:
    """One array a kind: rows of all answers behind each other, with the lengths to part them."""
    return {
        "numbers": np.array([answer.prompt.number for answer in answers], np.int64),
        "temperatures": np.array([answer.prompt.temperature for answer in answers], np.float64),
        "prompt_lengths": np.array([len(answer.prompt.ids) for answer in answers], np.int64),
        "prompts": np.concatenate([np.array(answer.prompt.ids, np.int32) for answer in answers]),
        "lengths": np.array([len(answer.tokens) for answer in answers], np.int64),
        "tokens": np.concatenate([answer.tokens for answer in answers]),
        "top_ids": np.concatenate([answer.top_ids for answer in answers]),
        "top_log_probs": np.concatenate([answer.top_log_probs for answer in answers]).astype(np.float16),
    }


def _unpacked(arrays: dict[str, Any]) -> Iterator[Answer]:
    prompt_ends, ends = np.cumsum(arrays["prompt_lengths"]), np.cumsum(arrays["lengths"])
    for index, number in enumerate(arrays["numbers"].tolist()):
        prompt_start = prompt_ends[index] - arrays["prompt_lengths"][index]
        ids = tuple(arrays["prompts"][prompt_start : prompt_ends[index]].tolist())
        rows = slice(ends[index] - arrays["lengths"][index], ends[index])
        yield Answer(
            Prompt(number, ids, float(arrays["temperatures"][index])),
            arrays["tokens"][rows],
            arrays["top_ids"][rows],
            arrays["top_log_probs"][rows].astype(np.float32),
        )


def _arrays(shard: Path, *names: str) -> dict[str, Any]:
    """The named arrays of a shard; without names, all. Raises StoreError for one that is damaged."""
    try:
        with np.load(shard, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except (OSError, EOFError, ValueError, KeyError, AttributeError, BadZipFile):
        fix = "Remove it: other answers take its place."
        raise StoreError("is damaged: its answers do not read", where=str(shard), fix=fix) from None
