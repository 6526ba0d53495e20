"""Draw one token from a row of logits: temperature, top-k, top-p, min-p, in the order of `transformers`.

Exact over the whole vocabulary, yet the row is read only when its few best tokens cannot settle the draw:
they come sorted, and `floor` bounds every other logit. Knows nothing of requests or penalties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conch.engine.noise import Noise

Row = NDArray[np.float32]

_ROUNDS = 128
"""Rounds of rejection made at once."""
_PATIENCE = 256
"""Expected rounds that cost as much as summing the row of a usual vocabulary."""


class Candidates(NamedTuple):
    """The best tokens of a row, best first. No token that is not among them has a logit above `floor`."""

    ids: NDArray[np.integer[Any]]
    logits: Row
    floor: float
    """-inf: no other token can be drawn."""
    row: Row
    """[vocabulary] the row they come from."""

    @property
    def best(self) -> float:
        return float(self.logits[0])

    @property
    def complete(self) -> bool:
        return self.floor == -math.inf

    def first(self, count: int) -> Candidates:
        """The `count` best, and nothing else."""
        return Candidates(self.ids[:count], self.logits[:count], -math.inf, self.row)


def best_of(row: Row, count: int) -> Candidates:
    """The `count` best tokens of a row."""
    if count >= len(row):
        return _sorted(row, np.arange(len(row)), -math.inf)
    ids = np.argpartition(row, len(row) - count)[-count:]
    return _sorted(row, ids, float(row[ids].min()))


def above(row: Row, threshold: float) -> Candidates:
    """The tokens of a row with a logit of at least `threshold`."""
    return _sorted(row, np.flatnonzero(row >= threshold), threshold)


def draw(
    candidates: Candidates,
    noise: Noise,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> int:
    """One token id. `temperature` is above 0; `top_k` 0, `top_p` 1 and `min_p` 0 keep every token.

    top_k keeps the k best; top_p the fewest best tokens whose probabilities reach it; min_p those at least
    min_p times as probable as the best. Each works on what the one before has kept.
    """
    if top_k:
        enough = (wide for wide in _widening(candidates) if wide.complete or len(wide.ids) >= top_k)
        candidates = next(enough).first(top_k)
    if top_p < 1.0:
        candidates = _nucleus(candidates, temperature, top_p)
    if min_p > 0.0:
        threshold = candidates.best + temperature * math.log(min_p)
        if candidates.floor >= threshold:
            candidates = above(candidates.row, threshold)
        candidates = candidates.first(int(np.count_nonzero(candidates.logits >= threshold)))
    if candidates.complete:
        return int(candidates.ids[_pick(_weights(candidates, candidates.logits, temperature), noise.one())])
    return _draw_from_all(candidates, temperature, noise)


def _sorted(row: Row, ids: NDArray[np.integer[Any]], floor: float) -> Candidates:
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return Candidates(ids, row[ids], floor, row)


def _widening(candidates: Candidates) -> Iterator[Candidates]:
    """The candidates, then more and more of their row, at last all of it."""
    yield candidates
    if candidates.floor < candidates.best:
        for reach in (1.25, 1.6, 2.2):
            yield above(candidates.row, candidates.best - reach * (candidates.best - candidates.floor))
    yield best_of(candidates.row, len(candidates.row))


def _weights(candidates: Candidates, logits: Row, temperature: float) -> Row:
    """Probabilities up to the common factor that makes the best token's 1."""
    weights: Row = np.exp((logits - candidates.best) / temperature)
    return weights


def _floor_weight(candidates: Candidates, temperature: float) -> float:
    return math.exp((candidates.floor - candidates.best) / temperature)


def _pick(weights: Row, uniform: float) -> int:
    cumulative = weights.cumsum(dtype=np.float64)
    return min(int(cumulative.searchsorted(uniform * cumulative[-1], side="right")), len(weights) - 1)


def _nucleus(candidates: Candidates, temperature: float, top_p: float) -> Candidates:
    """The fewest best tokens whose probabilities reach `top_p`."""
    total = None
    for wide in _widening(candidates):
        cumulative = _weights(wide, wide.logits, temperature).cumsum(dtype=np.float64)
        known, others = float(cumulative[-1]), len(wide.row) - len(wide.ids)
        # The nucleus grows with the total: when both bounds of it give one size, it needs no summing.
        size = _reach(cumulative, top_p * known)
        if size != _reach(cumulative, top_p * (known + others * _floor_weight(wide, temperature))):
            total = total or float(_weights(wide, wide.row, temperature).sum())
            size = _reach(cumulative, top_p * total)
        if size <= len(wide.ids) or wide.complete:
            break
    return wide.first(size)


def _reach(cumulative: NDArray[np.float64], amount: float) -> int:
    return int(cumulative.searchsorted(amount)) + 1


def _draw_from_all(candidates: Candidates, temperature: float, noise: Noise) -> int:
    """Draw from the whole row: by rejection, or by summing it when it is too flat for that.

    Whichever way it takes, a candidate is picked by the first number of the noise, as it would be from the
    candidates alone: a draft that knows no more than its own candidates then tends to pick the same token.
    """
    picked = noise.one()
    known = _weights(candidates, candidates.logits, temperature)
    sum_known = float(known.sum(dtype=np.float64))
    floor_weight = _floor_weight(candidates, temperature)
    proposed = sum_known + len(candidates.row) * floor_weight
    if proposed > _PATIENCE * sum_known:  # the logits alone decide it, so the draw stays exact
        weights = _weights(candidates, candidates.row, temperature)
        if noise.one() * float(weights.sum(dtype=np.float64)) < sum_known:
            return int(candidates.ids[_pick(known, picked)])
        weights[candidates.ids] = 0.0
        return _pick(weights, picked)
    while True:
        # Propose each candidate with its own weight and every token of the row with the floor's; take a
        # candidate at once, and another token with the chance of its own weight over the floor's.
        uniforms = noise.many(3 * _ROUNDS)
        at = uniforms[:_ROUNDS] * proposed
        tokens = (uniforms[_ROUNDS:-_ROUNDS] * len(candidates.row)).astype(np.int64)
        weights = _weights(candidates, candidates.row[tokens], temperature)
        for index in np.flatnonzero((at < sum_known) | (uniforms[-_ROUNDS:] * floor_weight < weights)):
            if at[index] < sum_known:
                return int(candidates.ids[_pick(known, picked)])
            if not (candidates.ids == tokens[index]).any():
                return int(tokens[index])
