"""Choose each request's next token from the logits of a step.

Greedy requests that change nothing take the graph's best token, all at once. For the others the row is
adjusted in the order of `transformers`: bias, repetition penalty, presence and frequency penalties, then what
is forbidden (bad words; end ids before `min_tokens`). `draw` does the rest. Knows nothing of schedules.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from conch.engine.batch import Rows
from conch.engine.draw import Candidates, Row, above, best_of, draw
from conch.engine.noise import Noise
from conch.engine.request import SamplingParams
from conch.engine.tally import Tally
from conch_build.errors import ConchError, RequestError

Top = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Picks:
    """The chosen token of each row and, by row number, what only some rows have."""

    tokens: list[int]
    log_probs: dict[int, tuple[float, Top]] = field(default_factory=dict)
    errors: dict[int, ConchError] = field(default_factory=dict)
    """Rows without a choice: their entry in `tokens` means nothing."""


def choose(rows: Rows, samplers: Sequence[Sampler]) -> Picks:
    """One token for each row; `samplers` in the rows' order."""
    picks = Picks(rows.top_ids[:, 0].tolist())
    broken = ~np.isfinite(rows.top_logits[:, 0])
    if broken.any():
        for row in np.flatnonzero(broken).tolist():
            picks.errors[row] = ConchError("the model's logits are not numbers", where="engine step")
    for row, sampler in enumerate(samplers):
        if sampler.plain or row in picks.errors:
            continue
        try:
            token = picks.tokens[row] = sampler.pick(rows, row)
        except ConchError as error:
            picks.errors[row] = error
            continue
        if sampler.params.log_probs or sampler.params.top_log_probs:
            picks.log_probs[row] = _log_probs(rows, row, token, sampler.params.top_log_probs)
    return picks


class Sampler:
    """One request's way of choosing. `tokens` is its live list: the prompt, then the answer as it grows."""

    __slots__ = (
        "_adjusts",
        "_bias",
        "_end_ids",
        "_prompt_len",
        "_seed",
        "_seen",
        "_tokens",
        "params",
        "plain",
    )

    def __init__(self, params: SamplingParams, tokens: list[int], end_ids: frozenset[int]) -> None:
        self.params = params
        self._tokens = tokens
        self._prompt_len = len(tokens)
        self._end_ids = list(end_ids)
        self._seed = secrets.randbits(64) if params.seed is None else int(params.seed)
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self._seen = Tally(tokens) if penalties != (1.0, 0.0, 0.0) else None
        self._bias = (
            np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
        )
        self._adjusts = bool(self._seen or params.logit_bias or params.embedding_bias is not None or params.bad_words)
        self.plain = self._is_plain()
        """The row's best token, as it stands, is the choice: `pick` and `observe` need not be called."""

    def observe(self, token: int) -> None:
        """`token` was chosen and appended to `tokens`."""
        if self._seen:
            self._seen.add(token)
        self.plain = self._is_plain()

    def pick(self, rows: Rows, row: int) -> int:
        """The next token. Raises RequestError if the request's own parameters leave no number to choose by."""
        params = self.params
        logits = rows.logits[row]
        adjusts = self._adjusts or self._too_early
        if adjusts:
            logits = logits.copy()
            with np.errstate(over="ignore", invalid="ignore"):
                self._adjust(logits)
            _check_possible(float(logits.max()))
        if params.greedy:
            return int(logits.argmax()) if adjusts else int(rows.top_ids[row, 0])
        candidates = Candidates(rows.top_ids[row], rows.top_logits[row], float(rows.top_logits[row, -1]), logits)
        if adjusts:
            candidates = self._candidates(logits, candidates)
        return draw(
            candidates,
            Noise(self._seed, len(self._tokens) - self._prompt_len),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )

    @property
    def _too_early(self) -> bool:
        return len(self._tokens) - self._prompt_len < self.params.min_tokens

    def _is_plain(self) -> bool:
        params = self.params
        tells = params.log_probs or params.top_log_probs > 0
        return params.greedy and not (self._adjusts or tells or self._too_early)

    def _adjust(self, logits: Row) -> None:
        """Apply bias, penalties and bans to `logits` [vocabulary], in place."""
        params = self.params
        if params.embedding_bias is not None:
            logits += params.embedding_bias
        if params.logit_bias:
            ids, bias = self._bias
            logits[ids] += bias
        if self._seen:
            seen, counts = self._seen.ids, self._seen.counts
            scores = logits[seen]
            if params.repetition_penalty != 1.0:
                scores = np.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
            logits[seen] = scores - (params.frequency_penalty * counts + params.presence_penalty * (counts > 0))
        for word in params.bad_words:
            before = len(word) - 1
            if before == 0 or self._tokens[-before:] == list(word[:-1]):
                logits[word[-1]] = -math.inf
        if self._too_early:
            logits[self._end_ids] = -math.inf

    def _candidates(self, logits: Row, before: Candidates) -> Candidates:
        """The best tokens after adjustment: those at or above what was the floor before it."""
        floor = before.floor
        if self.params.embedding_bias is not None:
            floor += float(self.params.embedding_bias.max())
        found = above(logits, floor)
        return found if len(found.ids) else best_of(logits, len(before.ids))


def _check_possible(best: float) -> None:
    """A draw among infinite or undefined logits would mean nothing, and might never end."""
    if best == -math.inf:
        raise RequestError("logit bias and bad words forbid every token", param="bad_words", code="invalid_value")
    if not math.isfinite(best):
        raise RequestError("penalties and biases make the logits overflow", code="invalid_value")


def _log_probs(rows: Rows, row: int, token: int, count: int) -> tuple[float, Top]:
    """Log probability of `token` and the `count` best (id, log probability), before any adjustment."""
    logits = rows.logits[row]
    best = float(rows.top_logits[row, 0])
    total = best + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    ids, values = rows.top_ids[row, :count], rows.top_logits[row, :count]
    if len(ids) < count:
        ids, values, _, _ = best_of(logits, count)
    top = tuple((token, value - total) for token, value in zip(ids.tolist(), values.tolist(), strict=True))
    return float(logits[token]) - total, top
