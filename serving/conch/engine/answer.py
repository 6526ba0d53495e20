"""How an answer grows: the tokens chosen from the rows of a step, and whether they end it.

Knows nothing of blocks, callers or other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from conch.engine.batch import Slot
from conch.engine.request import FinishReason, Output, PromptLogProbs
from conch.engine.sampling import Chooser, Top
from conch.engine.sequence import Sequence
from conch_build.errors import ConchError


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a step has added to an answer."""

    output: Output
    finish_reason: FinishReason | None
    error: ConchError | None
    guessed: int
    """Tokens of the draft, of which..."""
    accepted: int
    """...so many were right."""


def choose_next(sequence: Sequence, chooser: Chooser, row: int) -> Chosen:
    """Append the token that follows `tokens`, then one behind each guess as long as guesses turn out right.

    The rows from `row` on are those behind `tokens` and behind each token of its draft.
    """
    params, stop = sequence.request.sampling, sequence.stop
    draft, sequence.draft = sequence.draft, []
    tokens: list[int] = []
    scores: list[tuple[float, Top]] = []
    reason: FinishReason | None = None
    error: ConchError | None = None
    for guess in (*draft, None):
        try:
            token = chooser.token(sequence.sampler, row + len(tokens))
        except ConchError as broken:
            reason, error = "error", broken
            break
        if token in stop.end_ids:
            reason = "stop"
            break
        if params.log_probs or params.top_log_probs:
            scores.append(chooser.log_probs(row + len(tokens), token, params.top_log_probs))
        tokens.append(token)
        sequence.tokens.append(token)
        if not sequence.sampler.plain:
            sequence.sampler.observe(token)
        reason = "stop" if sequence.sampler.complete else stop.after(sequence.tokens, sequence.produced)
        if reason is not None or token != guess:
            break
    accepted = sum(guess == token for guess, token in zip(draft, tokens, strict=False))
    sequence.draft_tokens += len(draft)
    sequence.accepted_tokens += accepted
    sequence.draft_past = min(sequence.draft_past, len(sequence.tokens) - 1)
    output = Output(
        sequence.request.id,
        tuple(tokens),
        tuple(score for score, _ in scores) if scores else None,
        tuple(top for _, top in scores) if params.top_log_probs else None,
        _prompt_log_probs(sequence),
        index=sequence.index,
    )
    return Chosen(output, reason, error, len(draft), accepted)


def score_prompt(sequence: Sequence, slot: Slot, chooser: Chooser, row: int) -> None:
    """Note the log probabilities of the prompt tokens that follow those of `slot`, whose rows begin with `row`."""
    count = sequence.request.sampling.top_log_probs
    known = sequence.prompt_log_probs
    end = slot.past + len(slot.tokens)
    for at, follower in enumerate(range(end - slot.rows + 1, end + 1)):
        if len(known) + 1 == follower < sequence.prompt_len:  # a preempted prompt is computed twice
            known.append(chooser.log_probs(row + at, sequence.tokens[follower], count))


def _prompt_log_probs(sequence: Sequence) -> PromptLogProbs | None:
    """Those of the whole prompt, once, with the first tokens of answer 0."""
    if not sequence.request.sampling.prompt_log_probs or sequence.index or sequence.first_token_ns:
        return None
    known = sequence.prompt_log_probs
    return PromptLogProbs(tuple(score for score, _ in known), tuple(top for _, top in known))
