"""Who is compared with whom, what ours shall reach, and whether it did. Pure; knows nothing of processes.

A ratio is ours over the peer's in tokens/s of their best rounds, since noise only ever slows a round down; the ratio
of their median rounds stands beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conch.bench.figures import Figures


@dataclass(frozen=True)
class Contest:
    """Ours in one format against a peer. `least`: concurrency -> ratio of tokens/s to reach."""

    ours: str
    peer: str
    least: Mapping[int, float] = field(default_factory=dict)
    ttft_not_higher: bool = False


LEAST_REPEAT = 20.0
"""Times that the first token of a repeated 1,000-token prompt shall come sooner than of a new one."""


def contests(best: str) -> tuple[Contest, ...]:
    """All of them. `best`: the format of ours that goes against vLLM's bf16 besides our own bf16."""
    return (
        Contest("bf16", "vllm", {1: 1.3, 8: 1.6, 32: 1.8}, ttft_not_higher=True),
        Contest(best, "vllm", {1: 1.8, 8: 1.9, 32: 2.0}),
        Contest("int8", "openvino-genai", {1: 1.3, 8: 1.2, 32: 1.2}),
        Contest("int4", "llama.cpp", {1: 1.0}),
    )


@dataclass(frozen=True)
class Cell:
    """All rounds of one side at one workload and concurrency."""

    rounds: tuple[Figures, ...]

    @property
    def best(self) -> float:
        """Tokens/s."""
        return max(figures.tokens_per_second for figures in self.rounds)

    @property
    def median(self) -> float:
        """Tokens/s."""
        return statistics.median(figures.tokens_per_second for figures in self.rounds)

    @property
    def ttft_p50_ms(self) -> float:
        return min(figures.ttft_p50_ms for figures in self.rounds)

    @property
    def itl_p50_ms(self) -> float:
        return min(figures.itl_p50_ms for figures in self.rounds)

    @property
    def gap_p99_ms(self) -> float:
        return min(figures.gap_p99_ms for figures in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens_per_second": {"best": self.best, "median": self.median},
            "ttft_p50_ms": self.ttft_p50_ms,
            "itl_p50_ms": self.itl_p50_ms,
            "gap_p99_ms": self.gap_p99_ms,
            "rounds": [figures.as_dict() for figures in self.rounds],
        }


@dataclass(frozen=True)
class Verdict:
    """One row of a comparison. `reached` is None where nothing was demanded."""

    best_ratio: float
    median_ratio: float
    least: float | None
    reached: bool | None

    @property
    def word(self) -> str:
        return {None: "", True: "reached", False: "missed"}[self.reached]


def judge(contest: Contest, concurrency: int, ours: Cell, peer: Cell) -> Verdict:
    """Ours against the peer in one cell."""
    least = contest.least.get(concurrency)
    ratio = ours.best / peer.best
    demands = [] if least is None else [ratio >= least]
    if contest.ttft_not_higher:
        demands.append(ours.ttft_p50_ms <= peer.ttft_p50_ms)
    return Verdict(ratio, ours.median / peer.median, least, all(demands) if demands else None)


def judge_repeat(cold: Cell, again: Cell) -> Verdict:
    """How many times sooner a repeated prompt answers: by its fastest round, and by the median of rounds."""
    best = cold.ttft_p50_ms / again.ttft_p50_ms
    rounds = [one.ttft_p50_ms / other.ttft_p50_ms for one, other in zip(cold.rounds, again.rounds, strict=True)]
    return Verdict(best, statistics.median(rounds), LEAST_REPEAT, best >= LEAST_REPEAT)


def turns(sides: Sequence[str], round_number: int) -> list[str]:
    """The order of a round: each time another side begins."""
    start = round_number % len(sides)
    return [*sides[start:], *sides[:start]]
