"""Whether speculation pays, learned from the steps themselves, for each size of the batch. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL_STEPS = 12
"""Steps that tell how fast a mode is."""
RECHECK_STEPS = 400
"""Steps of one mode after which the other is tried again: its worth changes with what is being written."""
MEMORY = 1 / 24
"""Weight of a new step in the running means."""


@dataclass
class Rate:
    """Tokens a second of one mode."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    """Running means, of one step."""

    def add(self, tokens: float, seconds: float) -> None:
        self.steps += 1
        weight = max(1 / self.steps, MEMORY)
        if self.steps > 2:
            seconds = min(seconds, 3 * self.seconds)  # a hiccup of the machine says nothing of the mode
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)

    @property
    def known(self) -> bool:
        return self.steps >= TRIAL_STEPS

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class _Contest:
    """Both modes at one batch size."""

    plain: Rate = field(default_factory=Rate)
    speculative: Rate = field(default_factory=Rate)
    since_trial: int = 0
    trial_left: int = 0

    @property
    def pays(self) -> bool:
        """What is not known yet is given its chance."""
        if not (self.plain.known and self.speculative.known):
            return True
        return self.speculative.tokens_per_second > self.plain.tokens_per_second


class Payoff:
    """Answers before each step; learns after it. Batch sizes between two powers of two are taken together."""

    def __init__(self) -> None:
        self._contests: dict[int, _Contest] = {}
        self.pays = True
        """Whether speculation was worth it at the last batch size asked for."""

    def worth_trying(self, sequences: int) -> bool:
        """Whether to guess in the next step: where it pays, and now and then where it did not."""
        contest = self._contest(sequences)
        self.pays = contest.pays
        if not contest.speculative.known:
            return True
        if not contest.plain.known:
            return False
        if contest.trial_left == 0 and contest.since_trial >= RECHECK_STEPS:
            contest.since_trial, contest.trial_left = 0, TRIAL_STEPS
        if contest.trial_left:
            contest.trial_left -= 1
            return not self.pays
        contest.since_trial += 1
        return self.pays

    def record(self, sequences: int, tokens: int, seconds: float, *, speculative: bool) -> None:
        """A step gave `tokens` to `sequences` in `seconds`."""
        contest = self._contest(sequences)
        (contest.speculative if speculative else contest.plain).add(tokens, seconds)

    def _contest(self, sequences: int) -> _Contest:
        return self._contests.setdefault(sequences.bit_length(), _Contest())

    def __str__(self) -> str:
        """`1: 95 against 80 tok/s, ...` for each batch size, with speculation and without."""
        return ", ".join(
            f"{1 << (size - 1)} at once: {contest.speculative.tokens_per_second:.0f} tok/s with, "
            f"{contest.plain.tokens_per_second:.0f} without"
            for size, contest in sorted(self._contests.items())
        )
