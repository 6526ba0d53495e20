"""More and more requests at once, as long as the SLO is kept: what a server can do within it.

A level that breaks the SLO ends the climb: more at once would be slower still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conch.bench.traffic.setup import Options, trial_of
from conch.bench.traffic.trial import Load, Trial, row_of
from conch.tuning.served import Served
from conch_build.plan import Slo

Row = dict[str, Any]
_LATENCIES = {"ttft_p95": "ttft_p95_ms", "itl_p95": "tpot_p95_ms"}
"""`tpot`: as `conch bench` holds the limit, a request's mean time of a token."""


@dataclass(frozen=True)
class Climb:
    """The rows of the levels that were measured, from few at once to many."""

    rows: Sequence[Row]

    @property
    def best(self) -> Row | None:
        """The most tokens a second with the SLO kept; None where no level keeps it."""
        kept = [row for row in self.rows if row["slo_met"]]
        return max(kept, key=tokens_per_second) if kept else None


def tokens_per_second(row: Row) -> float:
    return float(row["tokens_per_second"])


def excess(row: Row, slo: Slo) -> float:
    """The worst latency over its limit: above 1 where the SLO is broken."""
    ratios = [
        (row[figure] or 0.0) / (1e3 * limit)
        for name, figure in _LATENCIES.items()
        if (limit := getattr(slo, name)) is not None
    ]
    return max(ratios, default=0.0)


async def climb(
    served: Served, options: Options, levels: Sequence[int], on_level: Callable[[int, Row], bool] = lambda n, row: True
) -> Climb:
    """`on_level` is told each number and row, and says whether to go on. Raises ServiceError."""
    trial = await trial_of(served.url, replace(options, plan=served.plan))
    try:
        await trial.warm_up()
        rows: list[Row] = []
        for number, level in enumerate(levels):
            row = await _measured(trial, level, options)
            rows.append(row)
            if not row["slo_met"] or not on_level(number, row):
                break
        return Climb(rows)
    finally:
        await trial.target.close()


async def _measured(trial: Trial, level: int, options: Options) -> Row:
    load = Load(concurrency=level, requests=options.requests or 3 * level)
    return row_of(load, [await trial.measure(load)], trial.terms)
