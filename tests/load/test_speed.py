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

ROUNDS = 12
"""At most. Noise only ever slows a round down, so the best of each side counts and more rounds may tell more."""
LEAST = {1: 0.85, 8: 0.85, 32: 0.75}
"""Share of the bare loop's tokens/s that must reach the client, by concurrency."""


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", LEAST)
def test_the_stack_keeps_most_of_the_bare_loops_speed(
    bare_loop: BareLoop, gateway: Gateway, concurrency: int, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = Workload("smollm2", max_tokens=128)
    alone = through = ratio = 0.0
    for attempt in range(ROUNDS):
        alone = max(alone, bare_loop.tokens_per_second(concurrency, workload))
        first = 1000 * concurrency + attempt * concurrency
        figures = asyncio.run(run_round(gateway.url, workload, concurrency, concurrency, first=first))
        through = max(through, figures.tokens_per_second)
        ratio = through / alone
        if attempt >= 2 and ratio >= LEAST[concurrency]:
            break
    with capsys.disabled():
        print(f"\n{concurrency:2} streams: bare loop {alone:.0f} tok/s, stack {through:.0f} tok/s, ratio {ratio:.2f}")
    assert ratio >= LEAST[concurrency]


@pytest.fixture(scope="module")
def bare_loop(sample_build: BuildResult) -> BareLoop:
    return BareLoop(sample_build.engine.path)
