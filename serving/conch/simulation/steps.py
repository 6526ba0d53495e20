"""How long a step of an engine takes, by what it computes. Knows nothing of schedules or of who measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from conch_build.errors import InputError

_KNOTS = (0, 2, 8, 24)
"""Rows of a step from which another row may cost another time: small products are bound by memory, large ones not."""


class Shape(NamedTuple):
    """What a step computes."""

    decoding: int
    """Sequences with one token each."""
    context: int
    """Tokens that those look back at, all together."""
    prompt: int
    """Tokens of prompts."""
    attended: int
    """Tokens before each of those, all together."""


class StepTimes(Protocol):
    def seconds(self, shape: Shape) -> float:
        """In the mean."""

    @property
    def spread(self) -> Sequence[float]:
        """Measured over mean time, as equally likely values; their mean is 1."""


@dataclass(frozen=True)
class Measured:
    """A sum of costs, fitted to steps that were timed: `weights` of `_features`."""

    weights: tuple[float, ...]
    spread: tuple[float, ...] = (1.0,)

    def seconds(self, shape: Shape) -> float:
        decoding, context, prompt, attended = shape
        base, chunk, token, looked, seen, *rows = self.weights
        total = base + token * prompt + looked * attended + seen * context + (chunk if prompt else 0.0)
        for knot, weight in zip(_KNOTS, rows, strict=True):
            if decoding > knot:
                total += weight * (decoding - knot)
        return max(total, 1e-6)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Measured:
        """Raises InputError for a file that `save` has not written."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            weights, spread = (tuple(float(value) for value in data[name]) for name in ("weights", "spread"))
        except (OSError, ValueError, KeyError, TypeError):
            weights, spread = (), ()
        if len(weights) != 5 + len(_KNOTS) or not spread or not all(map(np.isfinite, (*weights, *spread))):
            fix = "`conch simulate PLAN --save-steps FILE` writes one."
            raise InputError("holds no step times", where=str(path), fix=fix)
        return cls(weights, spread)


def fit(shapes: Sequence[Shape], seconds: Sequence[float]) -> Measured:
    """The costs, none below 0, that come closest to the measured times, each error taken relative to its time.

    Non-negative least squares by coordinate descent, which for so few costs is as good as any method.
    """
    features = np.array([_features(shape) for shape in shapes])
    took = np.asarray(seconds)
    scaled = features / took[:, None]
    gram, target = scaled.T @ scaled, scaled.sum(axis=0)
    weights = np.zeros(features.shape[1])
    for _ in range(20_000):
        before = weights.copy()
        for index in range(len(weights)):
            if gram[index, index] > 0:
                rest = target[index] - gram[index] @ weights + gram[index, index] * weights[index]
                weights[index] = max(rest / gram[index, index], 0.0)
        if np.abs(weights - before).max() <= 1e-9 * max(np.abs(weights).max(), 1e-12):
            break
    ratios = took / (features @ weights)
    weights *= float(ratios.mean())  # so that the spread's mean is 1
    spread = np.percentile(ratios / ratios.mean(), np.arange(0.5, 100, 1.0))
    return Measured(tuple(weights.tolist()), tuple((spread / spread.mean()).tolist()))


def _features(shape: Shape) -> list[float]:
    decoding, context, prompt, attended = shape
    rows = [float(max(decoding - knot, 0)) for knot in _KNOTS]
    return [1.0, float(prompt > 0), float(prompt), float(attended), float(context), *rows]
