"""What the stack costs: the whole way through gateway, Triton and engine against a bare loop around the model.

Both sides run in turns on the same machine, and the load generator shares its cores with the stack.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from conch.bench.load import Workload, run_round
from tests.load.bare_loop import BareLoop

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult
    from tests.contract.conftest import Gateway

ROUNDS = 5
LEAST = {1: 0.85, 8: 0.85, 32: 0.75}
"""Share of the bare loop's tokens/s that must reach the client, by concurrency."""


@pytest.mark.slow
def test_the_stack_keeps_most_of_the_bare_loops_speed(sample_build: BuildResult, gateway: Gateway) -> None:
    bare = BareLoop(sample_build.engine.path)
    workload = Workload("smollm2", max_tokens=128)
    number, ratios = 0, {}
    for concurrency in LEAST:
        alone, through = [], []
        for _ in range(ROUNDS):
            alone.append(bare.tokens_per_second(concurrency, workload))
            figures = asyncio.run(run_round(gateway.url, workload, concurrency, concurrency, first=number))
            through.append(figures.tokens_per_second)
            number += concurrency
        ratios[concurrency] = max(through) / max(alone)
        print(
            f"{concurrency:3} streams: bare loop {max(alone):.0f} tok/s, stack {max(through):.0f} tok/s, "
            f"ratio {ratios[concurrency]:.2f} (at least {LEAST[concurrency]})"
        )
    assert all(ratios[concurrency] >= least for concurrency, least in LEAST.items()), ratios
