"""Which fleet to buy."""

from __future__ import annotations

import pytest

from conch.bench.traffic.lengths import Lengths
from conch.bench.traffic.slo import Limits
from conch.engine.config import EngineConfig
from conch.simulation.capacity import Question
from conch.simulation.choose import Machines, choices, fewest
from conch.simulation.figures import RESOURCES
from conch.simulation.replica import Hardware
from conch.simulation.steps import Measured
from conch.simulation.workload import Workload
from conch_build.errors import InputError

TIMES = Measured((0.01, 0.0, 0.0001, 0.0, 1e-7, 0.0002, 0.0, 0.0, 0.0))


def machines(**changes: object) -> Machines:
    config = EngineConfig(max_batch_size=int(str(changes.get("batch", 16))))
    blocks = int(str(changes.get("blocks", 1000)))
    return Machines({1: Hardware(config, blocks, 32, TIMES)}, None, gpu_hourly_usd=2.0)


def question(**limits: float) -> Question:
    return Question(Workload(Lengths("fixed", 100), Lengths("fixed", 40)), Limits(limits), seconds=8.0)


def quiet(text: str) -> None:
    pass


def test_more_gpus_take_more_and_cost_more() -> None:
    (few, (small, *_)), (many, (large, *_)) = choices(machines(), question(ttft=0.5, itl=0.05), [2, 4], quiet)
    assert (few, many) == (2, 4)
    assert 1.7 < large.requests_per_second / small.requests_per_second < 2.6
    assert (small.usd_per_hour, large.usd_per_hour) == (4.0, 8.0)
    assert small.breaks_first in RESOURCES
    assert small.breaks_at > small.requests_per_second


def test_the_fewest_gpus_for_a_rate_keep_it() -> None:
    (_, (two, *_)), *_ = choices(machines(), question(ttft=0.5, itl=0.05), [2], quiet)
    best = fewest(machines(), question(ttft=0.5, itl=0.05), 1.4 * two.requests_per_second, quiet)
    assert best.gpus in (3, 4)
    assert best.requests_per_second >= 1.4 * two.requests_per_second


@pytest.mark.parametrize(
    ("changes", "limits", "resource"),
    [
        ({"blocks": 12}, {"ttft": 0.5}, "kv"),
        ({"batch": 2}, {"ttft": 0.5}, "queue"),
        ({"batch": 64}, {"itl": 0.014}, "decode"),
    ],
)
def test_what_breaks_first_is_named(changes: dict[str, int], limits: dict[str, float], resource: str) -> None:
    ((_, (one, *_)),) = choices(machines(**changes), question(**limits), [1], quiet)
    assert one.breaks_first == resource


def test_an_slo_that_nothing_keeps_is_told_in_a_sentence() -> None:
    with pytest.raises(InputError, match="not kept by 1 GPUs"):
        choices(machines(), question(ttft=0.001), [1], quiet)
