"""What is measured of a variant, and what of it is better. Knows nothing of how requests are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from conch.gateway.ab.sequential import Difference, Moments, difference
from conch_build.plan_experiments import Guard

Figure = Literal["quality", "errors", "ttft", "e2e", "cost"]

BETTER: Mapping[str, int] = {"quality": 1, "errors": -1, "ttft": -1, "e2e": -1, "cost": -1}
"""1: more is better; -1: less is."""
UNITS: Mapping[str, str] = {"quality": "", "errors": "", "ttft": " s", "e2e": " s", "cost": " USD"}

Kept = Mapping[str, Moments]
"""Figure -> observations."""


@dataclass(frozen=True)
class Verdict:
    """`variant` against the baseline."""

    variant: str
    figure: str
    found: Difference | None

    @property
    def outcome(self) -> Literal["open", "better", "worse"]:
        if self.found is None or not self.found.is_certain:
            return "open"
        return "better" if self.found.value * BETTER[self.figure] > 0 else "worse"

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.variant}: too few requests to say"
        unit, value = UNITS[self.figure], self.found
        return (
            f"{self.variant}: {self.outcome} in {self.figure}: {value.value:+.4g}{unit}"
            f" ({value.low:+.4g} to {value.high:+.4g})"
        )


def verdict(baseline: Kept, variant: Kept, name: str, figure: str, *, alpha: float) -> Verdict:
    """Whether the variant differs from the baseline in one figure."""
    none = Moments()
    return Verdict(name, figure, difference(baseline.get(figure, none), variant.get(figure, none), alpha=alpha))


def broken(guard: Guard, baseline: Kept, variant: Kept) -> str | None:
    """Why a variant must not go on, if it must not: a guard rail is certainly passed, whenever one looks."""
    none = Moments()

    def found(figure: str) -> Difference | None:
        return difference(baseline.get(figure, none), variant.get(figure, none), alpha=guard.alpha)

    def mean(figure: str) -> float:
        return baseline.get(figure, none).mean

    errors, quality = found("errors"), found("quality")
    if guard.errors_increase is not None and errors is not None and errors.low > guard.errors_increase:
        return f"errors are up by {errors.value:.1%} of the requests, at most {guard.errors_increase:.1%} are allowed"
    if guard.quality_decrease is not None and quality is not None and -quality.high > guard.quality_decrease:
        return f"quality is down by {-quality.value:.3g}, at most {guard.quality_decrease:.3g} are allowed"
    for figure, ratio in (("ttft", guard.ttft_ratio), ("e2e", guard.e2e_ratio), ("cost", guard.cost_ratio)):
        gap = found(figure)
        if ratio is not None and gap is not None and gap.low > (ratio - 1) * mean(figure):
            share = 1 + gap.value / mean(figure)
            return f"{figure} is {share:.2f}x the baseline's, at most {ratio:.2f}x are allowed"
    return None
