"""Feeds: the tokens of many streams in one response a step, instead of one response a token.

A caller opens a feed by a request with `conch_feed` (a name of its choice) alone, and starts generations with the
same `conch_feed` and a `conch_feed_stream` (a number). Their tokens then go to the feed; each generation's own last
response brings the tokens that are left, and `num_output_tokens` says how many there are in all. A feed ends when
its caller cancels it. Knows nothing of engines.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.backend.arrays import Arrays, strings
from conch.backend.tensors import Call
from conch_build.errors import RequestError, UnsupportedError


class Feed:
    """One caller's feed. `name` is the caller's; `sender` is Triton's, and the lock is held to use it."""

    def __init__(self, name: str, sender: Any) -> None:
        self.name = name
        self.sender = sender
        self.lock = threading.Lock()
        self.closed = False
        self._streams: list[int] = []
        self._counts: list[int] = []
        self._tokens: list[int] = []

    def add(self, stream: int, tokens: list[int]) -> None:
        self._streams.append(stream)
        self._counts.append(len(tokens))
        self._tokens += tokens

    def take(self) -> dict[str, NDArray[Any]]:
        """What was added since the last time, as tensors: for each stream in order, how many of the ids are its own."""
        tensors = {
            "conch_feed_streams": np.array([self._streams], np.int32),
            "conch_feed_counts": np.array([self._counts], np.int32),
            "output_ids": np.array([[self._tokens]], np.int32),
        }
        self._streams, self._counts, self._tokens = [], [], []
        return tensors


class Feeds:
    """The open feeds, by name."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}

    def __iter__(self) -> Iterator[Feed]:
        return iter(list(self._feeds.values()))

    def open(self, name: str, sender: Any) -> None:
        """Raises RequestError when there is one of that name."""
        if name in self._feeds:
            raise RequestError(f"the feed {name!r} is open already", param="conch_feed")
        self._feeds[name] = Feed(name, sender)

    def get(self, name: str) -> Feed | None:
        """None when it is not open, or not yet: the generation then answers on its own."""
        return self._feeds.get(name)

    def close(self, feed: Feed) -> None:
        """Take a feed out, before its last response is sent."""
        feed.closed = True
        del self._feeds[feed.name]


def feed_of(inputs: Arrays) -> tuple[str, int | None] | None:
    """The feed that a request names and its own number in it; no number: the request opens the feed.

    Raises RequestError.
    """
    if "conch_feed" not in inputs:
        if "conch_feed_stream" in inputs:
            raise RequestError("`conch_feed_stream` without `conch_feed`", param="conch_feed_stream")
        return None
    name = "".join(strings(inputs, "conch_feed"))
    if not name:
        raise RequestError("`conch_feed` is empty", param="conch_feed")
    numbers = inputs.get("conch_feed_stream", np.empty(0)).ravel()
    if numbers.size > 1:
        raise RequestError(f"`conch_feed_stream` needs one value, not {numbers.size}", param="conch_feed_stream")
    return name, int(numbers[0]) if numbers.size else None


def check_fed(call: Call) -> None:
    """Raises UnsupportedError for a generation whose responses hold more than tokens."""
    sampling = call.request.sampling
    if call.request.n > 1 or sampling.log_probs or sampling.prompt_log_probs:
        raise UnsupportedError(
            "a feed carries tokens: no log probabilities and no `num_return_sequences`",
            param="conch_feed",
            fix="Leave `conch_feed` out.",
        )
