"""How many tokens it pays to guess, learned from the steps themselves, for each size of the batch. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL_STEPS = 12
"""Steps that tell how fast a length is."""
RECHECK_STEPS = 400
"""Steps of the best length after which another is tried again: their worth changes with what is being written."""
MEMORY = 1 / 24
"""Weight of a new step in the running means."""


@dataclass
class Rate:
    """Tokens a second of one length."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    """Running means, of one step."""

    def add(self, tokens: float, seconds: float) -> None:
        self.steps += 1
        weight = max(1 / self.steps, MEMORY)
        if self.steps > 2:
            seconds = min(seconds, 3 * self.seconds)  # a hiccup of the machine says nothing of the length
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
    """All lengths at one batch size. Those that are not known yet are tried first, in their order."""

    rates: dict[int, Rate]
    since_trial: int = 0
    trial_left: int = 0
    on_trial: int = 0
    tried: list[int] = field(default_factory=list)
    """Every length, the one whose trial is longest ago first."""

    @property
    def best(self) -> int:
        known = [length for length, rate in self.rates.items() if rate.known]
        return max(known or self.rates, key=lambda length: self.rates[length].tokens_per_second)

    def next(self) -> int:
        for length, rate in self.rates.items():
            if not rate.known:
                return length
        if self.trial_left == 0 and self.since_trial >= RECHECK_STEPS:
            self.since_trial, self.trial_left = 0, TRIAL_STEPS
            self.on_trial = next(length for length in self.tried if length != self.best)
            self.tried.remove(self.on_trial)
            self.tried.append(self.on_trial)
        if self.trial_left:
            self.trial_left -= 1
            return self.on_trial
        self.since_trial += 1
        return self.best


class Payoff:
    """Answers before each step; learns after it. Batch sizes between two powers of two are taken together."""

    def __init__(self, longest: int) -> None:
        self._lengths = lengths_up_to(longest)
        self._contests: dict[int, _Contest] = {}
        self.best = longest
        """What is best at the last batch size asked for: so many tokens, or none."""

    def length(self, sequences: int) -> int:
        """Tokens to guess in the next step: the best number, or now and then another."""
        contest = self._contest(sequences)
        length = contest.next()
        self.best = contest.best
        return length

    def record(self, sequences: int, length: int, tokens: int, seconds: float) -> None:
        """A step that guessed `length` tokens for each of `sequences` gave `tokens` in `seconds`."""
        self._contest(sequences).rates[length].add(tokens, seconds)

    def _contest(self, sequences: int) -> _Contest:
        size = sequences.bit_length()
        if size not in self._contests:
            self._contests[size] = _Contest({n: Rate() for n in self._lengths}, tried=self._lengths[::-1])
        return self._contests[size]

    def __str__(self) -> str:
        """`1 at once: 0 80 tok/s, 1 95 tok/s; ...`: for each batch size how fast each length is."""
        return "; ".join(
            f"{1 << (size - 1)} at once: "
            + ", ".join(
                f"{length} {rate.tokens_per_second:.0f} tok/s" for length, rate in sorted(contest.rates.items())
            )
            for size, contest in sorted(self._contests.items())
        )


def lengths_up_to(longest: int) -> list[int]:
    """The lengths that are tried: the longest, none, and powers of two between."""
    return [longest, 0, *(1 << power for power in range(longest.bit_length()) if 1 << power < longest)]
