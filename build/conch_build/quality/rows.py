"""What a model thinks of each next token of a text, wholly or of the likeliest ones; two models compared by it.

Knows neither engines nor servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch_build.errors import InputError
from conch_build.quality.figures import TextFigures
from conch_build.quality.formulas import (
    Floats,
    divergence,
    least_divergence,
    log_softmax,
    perplexity,
    ratio_interval,
)

CHUNK = 128
"""Positions of one text that are compared at once: full rows of a large vocabulary take megabytes each."""
TOP = 20
"""Tokens known of each position where not all are."""


@dataclass(frozen=True, eq=False)
class TopRows:
    """Positions of one text of which the likeliest tokens are known."""

    tokens: tuple[int, ...]
    """The ones that came, n of them."""
    log_probs: Floats | None
    """[n] theirs, where they are known."""
    top: tuple[Mapping[Any, float], ...]
    """For each position token (its id, or its text) -> log probability, the likeliest first."""


@dataclass(frozen=True, eq=False)
class FullRows:
    """Positions of one text of which everything is known."""

    tokens: tuple[int, ...]
    logits: NDArray[Any]
    """[n, vocabulary]."""

    @cached_property
    def all(self) -> Floats:
        """[n, vocabulary] log probabilities."""
        return log_softmax(self.logits)

    @property
    def log_probs(self) -> Floats:
        found: Floats = self.all[np.arange(len(self.tokens)), list(self.tokens)]
        return found

    @property
    def best(self) -> tuple[int, ...]:
        return tuple(self.logits.argmax(-1).tolist())

    def as_top(self) -> TopRows:
        """The same as a server tells it."""
        tops = []
        for token, row in zip(self.tokens, self.all, strict=True):
            likeliest = np.argsort(-row, kind="stable")[:TOP].tolist()
            tops.append({index: float(row[index]) for index in dict.fromkeys((*likeliest, token))})
        return TopRows(self.tokens, self.log_probs, tuple(tops))


Rows = FullRows | TopRows


def compare(baseline: Iterable[Rows] | None, build: Iterable[Rows]) -> TextFigures:
    """The figures of a build on text, from chunk after chunk of both. Raises InputError when they do not match."""
    own: list[Floats | None] = []
    theirs: list[Floats | None] = []
    tokens = 0
    agreed: list[bool] = []
    kl: list[float] = []
    unseen: list[float] = []
    exact = True
    if baseline is None:
        for rows in build:
            tokens += len(rows.tokens)
            own.append(rows.log_probs)
    else:
        for base, rows in zip_longest(baseline, build):
            _check_alike(base, rows)
            tokens += len(rows.tokens)
            own.append(rows.log_probs)
            theirs.append(base.log_probs)
            if isinstance(base, FullRows) and isinstance(rows, FullRows):
                agreed += [a == b for a, b in zip(base.best, rows.best, strict=True)]
                kl += divergence(base.all, rows.all).tolist()
                unseen += [0.0] * len(rows.tokens)
                continue
            exact = False
            for p, q in zip(_top(base).top, _top(rows).top, strict=True):
                _check_names(p, q)
                agreed.append(next(iter(p)) == next(iter(q)))
                bound, missed = least_divergence(p, q)
                kl.append(bound)
                unseen.append(missed)
    if not tokens:
        raise InputError("the text has no two tokens in a row", where="--text", fix="Give more text.")
    mine, other = _whole(own), _whole(theirs)
    both = None if mine is None or other is None else (other, mine)
    figures = TextFigures(
        tokens=tokens,
        perplexity=None if mine is None else perplexity(mine),
        baseline_perplexity=None if other is None else perplexity(other),
        perplexity_ratio=both and perplexity(both[1]) / perplexity(both[0]),
        perplexity_ratio_interval=both and ratio_interval(*both),
    )
    if baseline is None:
        return figures
    beside = {"agreement": float(np.mean(agreed)), "kl": float(np.mean(kl)), "kl_unseen": float(np.mean(unseen))}
    return figures.model_copy(update={**beside, "kl_exact": exact})


def _whole(parts: list[Floats | None]) -> Floats | None:
    """Of every position; None unless all are known."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


def _top(rows: Rows) -> TopRows:
    return rows.as_top() if isinstance(rows, FullRows) else rows


def _check_names(p: Mapping[Any, float], q: Mapping[Any, float]) -> None:
    if type(next(iter(p))) is not type(next(iter(q))):
        raise InputError(
            "one of the two tells tokens by their ids and the other by their texts",
            where="the baseline",
            fix="Compare two servers of a kind: --baseline-url.",
        )


def _check_alike(baseline: Rows | None, build: Rows | None) -> None:
    if baseline is None or build is None or baseline.tokens != build.tokens:
        raise InputError(
            "the two did not tell of the same positions of the text",
            where="the baseline",
            fix="Compare a build with a model of the same tokenizer.",
        )
    sizes = {rows.logits.shape[-1] for rows in (baseline, build) if isinstance(rows, FullRows)}
    if len(sizes) > 1:
        raise InputError(
            f"the two models have vocabularies of {' and '.join(map(str, sorted(sizes)))} tokens",
            where="the baseline",
            fix="Compare a build with a model of the same tokenizer.",
        )
