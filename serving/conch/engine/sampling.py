"""Choose each request's next token from the logits of a step.

Greedy requests that change nothing take the graph's best token, all at once. For the others the row is
adjusted in the order of `transformers`: bias, repetition penalty, presence and frequency penalties, then what
is forbidden (by the guide, bad words; end ids before `min_tokens`). `draw` does the rest. Knows nothing of
schedules.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from conch.engine.batch import Rows
from conch.engine.draw import Candidates, Row, above, best_of, draw
from conch.engine.guided import Grammar, Matcher
from conch.engine.noise import Noise
from conch.engine.request import SamplingParams
from conch.engine.tally import Tally
from conch_build.errors import RequestError, ServiceError

Top = tuple[tuple[int, float], ...]

_APART = 0x9E3779B97F4A7C15
"""Far from any other caller's seed, which are often small numbers."""


class Chooser:
    """Chooses from the rows of one step, each by its request's sampler."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._best: list[int] = rows.top_ids[:, 0].tolist()
        self._broken = set(np.flatnonzero(~np.isfinite(rows.top_logits[:, 0])).tolist())

    def token(self, sampler: Sampler, row: int) -> int:
        """The next token. Raises ServiceError for a broken row, RequestError when the request leaves no choice."""
        if row in self._broken:
            raise ServiceError("the model's logits are not numbers", where="engine step")
        return self._best[row] if sampler.plain else sampler.pick(self._rows, row)

    def log_probs(self, row: int, token: int, count: int) -> tuple[float, Top]:
        """Log probability of `token` and the `count` best (id, log probability), before any adjustment."""
        return _log_probs(self._rows, row, token, count)


class Sampler:
    """One request's way of choosing. `tokens` is its live list: the prompt, then the answer as it grows."""

    __slots__ = (
        "_adjusts",
        "_bias",
        "_end_ids",
        "_matcher",
        "_prompt_len",
        "_seed",
        "_seen",
        "_tokens",
        "params",
        "plain",
    )

    def __init__(self, params: SamplingParams, tokens: list[int], end_ids: frozenset[int], index: int = 0) -> None:
        """`index` tells several answers to one prompt apart: each draws with its own noise."""
        self.params = params
        self._tokens = tokens
        self._prompt_len = len(tokens)
        self._end_ids = list(end_ids)
        self._matcher: Matcher | None = None
        self._seed = secrets.randbits(64) if params.seed is None else int(params.seed) + index * _APART
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self._seen = Tally(tokens) if penalties != (1.0, 0.0, 0.0) else None
        self._bias = (
            np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
        )
        self._adjusts = bool(self._seen or params.logit_bias or params.embedding_bias is not None or params.bad_words)
        self.plain = self._is_plain()
        """The row's best token, as it stands, is the choice: `pick` and `observe` need not be called."""

    def follow(self, grammar: Grammar) -> None:
        """Choose by this grammar, that of the request's guide, from the beginning of the answer on.

        A part of the answer may be there already: another engine has begun it.
        """
        self._matcher = grammar.matcher(frozenset(self._end_ids))
        for token in self._tokens[self._prompt_len :]:
            self._matcher.accept(token)

    @property
    def complete(self) -> bool:
        """The answer is all that its guide allows."""
        return self._matcher is not None and self._matcher.complete

    def observe(self, token: int) -> None:
        """`token` was chosen and appended to `tokens`."""
        if self._seen:
            self._seen.add(token)
        if self._matcher:
            self._matcher.accept(token)
        self.plain = self._is_plain()

    def pick(self, rows: Rows, row: int) -> int:
        """The next token. Raises RequestError if the request's own parameters leave no number to choose by."""
        params = self.params
        logits = rows.logits[row]
        best = int(rows.top_ids[row, 0])
        adjusts = self._adjusts or self._too_early
        if self._matcher and not (params.greedy and not adjusts and self._matcher.allows(best)):
            adjusts = True  # only a greedy choice that the guide allows needs no mask
        if adjusts:
            logits = logits.copy()
            with np.errstate(over="ignore", invalid="ignore"):
                self._adjust(logits)
            _check_possible(float(logits.max()))
        if params.greedy:
            return int(logits.argmax()) if adjusts else best
        candidates = Candidates(rows.top_ids[row], rows.top_logits[row], float(rows.top_logits[row, -1]), logits)
        if adjusts:
            candidates = self._candidates(logits, candidates)
        return self._draw(candidates)

    def guess(self, rows: Rows, row: int, ahead: int) -> int:
        """What `pick` may choose `ahead` tokens from now, by the row of a model that resembles the target.

        The same noise meets a similar distribution, so that both tend to draw the same token.
        """
        if self.params.greedy:
            return int(rows.top_ids[row, 0])
        return self._draw(Candidates(rows.top_ids[row], rows.top_logits[row], -math.inf, rows.logits[row]), ahead)

    def _draw(self, candidates: Candidates, ahead: int = 0) -> int:
        params = self.params
        return draw(
            candidates,
            Noise(self._seed, len(self._tokens) - self._prompt_len + ahead),
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
        return params.greedy and not (self._adjusts or tells or self._too_early or params.guide)

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
        if self._matcher:
            self._matcher.mask(logits)
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
        raise RequestError("guide, biases and bad words forbid every token", param="bad_words", code="invalid_value")
    if not math.isfinite(best):
        raise RequestError("penalties and biases make the logits overflow", code="invalid_value")


def _log_probs(rows: Rows, row: int, token: int, count: int) -> tuple[float, Top]:
    logits = rows.logits[row]
    best = float(rows.top_logits[row, 0])
    total = best + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    ids, values = rows.top_ids[row, :count], rows.top_logits[row, :count]
    if len(ids) < count:
        ids, values, _, _ = best_of(logits, count)
    top = tuple((token, value - total) for token, value in zip(ids.tolist(), values.tolist(), strict=True))
    return float(logits[token]) - total, top
