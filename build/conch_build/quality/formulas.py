"""How far one model's next-token distribution lies from another's. Pure arithmetic on arrays; natural logarithms.

P is the baseline, Q the build. Where only the likeliest tokens of each are known, as over a URL, the divergence is
that of the distributions in which all other tokens are one: never more than the true one (T. Cover, J. Thomas,
Elements of Information Theory, 2nd ed., 2006, theorem 2.7.1, the log sum inequality).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def log_softmax(logits: NDArray[Any]) -> Floats:
    """Log probabilities `[n, vocabulary]` of logits of that shape."""
    rows: Floats = logits.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    return rows


def perplexity(log_probs: Floats) -> float:
    """exp of the mean negative log probability of the tokens that came."""
    return math.exp(-float(np.mean(log_probs)))


def ratio_interval(baseline: Floats, build: Floats) -> tuple[float, float]:
    """95 % of the ratio of perplexities, from the paired differences of the tokens' log probabilities.

    Tokens count as independent, so that it is a little too narrow.
    """
    differences = baseline - build
    error = 1.96 * float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    mean = float(np.mean(differences))
    return math.exp(mean - error), math.exp(mean + error)


def divergence(p: Floats, q: Floats) -> Floats:
    """KL(P || Q) of each row of log probabilities `[n, vocabulary]`, at least 0; infinite where Q excludes a token."""
    possible = p > -np.inf
    with np.errstate(invalid="ignore"):
        terms = np.where(possible, np.exp(p) * (p - q), 0.0)
    values: Floats = np.maximum(terms.sum(-1), 0.0)
    return values


def least_divergence(p: Mapping[Any, float], q: Mapping[Any, float]) -> tuple[float, float]:
    """A lower bound of KL(P || Q) from the log probabilities of some tokens of each.

    Also the share of P that it does not see: the tokens that are not known of both. With all tokens known of both
    it is the divergence itself.
    """
    both = p.keys() & q.keys()
    bound = sum(math.exp(p[token]) * (p[token] - q[token]) for token in both)
    rest_p = max(0.0, 1.0 - sum(math.exp(p[token]) for token in both))
    rest_q = max(0.0, 1.0 - sum(math.exp(q[token]) for token in both))
    if rest_p > _ROUNDING and rest_q > _ROUNDING:
        bound += rest_p * math.log(rest_p / rest_q)
    return max(0.0, bound), rest_p


_ROUNDING = 1e-6
"""What the log probabilities of a server, which come in f32, may sum to beside 1."""
