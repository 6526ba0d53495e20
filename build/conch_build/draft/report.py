"""What a draft is worth: how many of its guesses the target takes, and how much faster that makes it.

Arithmetic on matches: for one answer a bool a token, whether the draft's best token is the target's own next one,
given everything before. A run of matches is what speculation would have had, for a taken guess is what the target
would have written. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matches = NDArray[np.bool_]

LONGEST = 6
"""The largest `max_draft_len` that is reported."""


@dataclass(frozen=True)
class Prospect:
    """One setting of `max_draft_len`."""

    max_draft_len: int
    tokens_per_step: float
    """Tokens that one step of the target gives: the guesses taken, and the target's own."""
    speedup: float
    """Predicted, over decoding without a draft, one sequence at a time."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step with one sequence."""

    draft: float
    target: Mapping[int, float]
    """By the tokens verified in it: 1 is plain decoding."""


def acceptance(answers: Sequence[Matches]) -> float:
    """The share of all tokens that the draft guesses."""
    return float(np.concatenate(answers).mean()) if answers else 0.0


def acceptance_by_position(answers: Sequence[Matches], length: int = LONGEST) -> list[float]:
    """For the 1st, 2nd, ... guess: how often it is taken when all before it were (0 when none ever were)."""
    judged, taken = np.zeros(length), np.zeros(length)
    for matches in answers:
        for start in range(len(matches)):
            run = _run(matches, start, length)
            judged[: min(run + 1, len(matches) - start)] += 1
            taken[:run] += 1
    return [float(rate) for rate in taken / np.maximum(judged, 1)]


def tokens_per_step(answers: Sequence[Matches], max_draft_len: int) -> float:
    """Tokens that a step gives when every step guesses `max_draft_len` of them."""
    tokens = steps = 0
    for matches in answers:
        at = 0
        while at < len(matches):
            at += min(1 + _run(matches, at, max_draft_len), len(matches) - at)
            steps += 1
        tokens += len(matches)
    return tokens / steps if steps else 1.0


def expected_tokens_per_step(rate: float, max_draft_len: int) -> float:
    """The same from one acceptance rate for all guesses: (1 - a^(g+1)) / (1 - a).

    Equation 1 of Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023.
    """
    return max_draft_len + 1.0 if rate >= 1 else (1 - rate ** (max_draft_len + 1)) / (1 - rate)


def speedup(tokens: float, max_draft_len: int, times: StepTimes) -> float:
    """How much faster tokens come, when a step with `max_draft_len` guesses gives `tokens`.

    Theorem 3.8 of Leviathan et al.: tokens a step over (g * c + 1), c being the draft's step over the target's. It
    takes verifying g + 1 tokens to cost what decoding one does; on a CPU it costs more, so it is measured:
    tokens * T(1) / (g * T_draft + T(g + 1)).
    """
    return tokens * times.target[1] / (max_draft_len * times.draft + times.target[max_draft_len + 1])


def prospects(answers: Sequence[Matches], times: StepTimes) -> list[Prospect]:
    """Every `max_draft_len` up to LONGEST."""
    found = []
    for length in range(1, LONGEST + 1):
        tokens = tokens_per_step(answers, length)
        found.append(Prospect(length, tokens, speedup(tokens, length, times)))
    return found


@dataclass(frozen=True)
class DraftReport:
    """What `conch draft` says, and writes beside the weights."""

    layers: int
    vocabulary: int
    """Tokens that the draft can guess."""
    coverage: float
    """Share of the target's tokens, held-out, that are among them."""
    parameters: int
    answers: int
    tokens: int
    """Of the target's answers, learned from."""
    tokens_seen: int
    """In training, the same ones again included."""
    acceptance: float
    """On held-out greedy answers."""
    acceptance_sampled: float
    """On held-out sampled answers."""
    acceptance_by_position: tuple[float, ...]
    prospects: tuple[Prospect, ...]
    draft_step_ms: float
    target_step_ms: tuple[float, ...]
    """By tokens verified, from 1."""

    @property
    def best(self) -> Prospect:
        """The `max_draft_len` that promises most."""
        return max(self.prospects, key=lambda prospect: prospect.speedup)

    def as_dict(self) -> dict[str, Any]:
        """As `--json` and the file beside the weights have it."""
        return {**asdict(self), "max_draft_len": self.best.max_draft_len}


def _run(matches: Matches, start: int, length: int) -> int:
    """How many of the guesses from `start` are taken."""
    guesses = matches[start : start + length]
    return len(guesses) if guesses.all() else int(guesses.argmin())
