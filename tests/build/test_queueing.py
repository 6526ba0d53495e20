"""Waiting for a place: Erlang's formulas against SciPy's sums and against a simulation, request by request."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import poisson

from conch_build.errors import InputError
from conch_build.queueing import Queue, erlang_b, erlang_c, replicas_for

servers = st.integers(1, 300)
loads = st.floats(0.01, 0.99)


@given(count=servers, load=loads)
def test_erlang_b_is_the_truncated_poisson_distribution(count: int, load: float) -> None:
    offered = count * load
    assert erlang_b(count, offered) == pytest.approx(
        poisson.pmf(count, offered) / poisson.cdf(count, offered), rel=1e-6, abs=1e-12
    )


@given(count=servers, load=loads)
def test_erlang_c_is_the_textbook_sum(count: int, load: float) -> None:
    offered = count * load
    tail = poisson.pmf(count, offered) / (1 - load)
    assert erlang_c(count, offered) == pytest.approx(tail / (poisson.cdf(count - 1, offered) + tail))


@given(load=loads, service=st.floats(0.001, 100), variation=st.floats(0, 10))
def test_one_server_waits_as_pollaczek_and_khinchine_say(load: float, service: float, variation: float) -> None:
    queue = Queue(load / service, service, 1, variation)
    assert queue.mean_wait_seconds == pytest.approx(load * service * (1 + variation) / (2 * (1 - load)))


@given(count=servers, load=loads)
def test_quantiles_of_the_wait_have_its_mean(count: int, load: float) -> None:
    queue = Queue(count * load, 1.0, count)
    waiting = queue.waiting_share
    assume(waiting > 1e-6)
    middles = [1 - waiting * (index + 0.5) / 2000 for index in range(2000)]
    mean = waiting * sum(map(queue.wait_seconds, middles)) / len(middles)
    assert mean == pytest.approx(queue.mean_wait_seconds, rel=1e-2)


def simulated_waits(queue: Queue, requests: int, draw: random.Random) -> list[float]:
    """Requests in turn, each to the server that is free first; service times are exponential, or all equal."""
    free, now, waits = [0.0] * queue.servers, 0.0, []
    for _ in range(requests):
        now += draw.expovariate(queue.arrivals)
        start = max(now, heapq.heappop(free))
        service = draw.expovariate(1 / queue.service_seconds) if queue.variation else queue.service_seconds
        heapq.heappush(free, start + service)
        waits.append(start - now)
    return waits[requests // 10 :]


@pytest.mark.parametrize(("count", "load"), [(1, 0.7), (8, 0.85), (64, 0.95)])
@pytest.mark.parametrize("variation", [0.0, 1.0])
def test_waits_agree_with_a_simulation(count: int, load: float, variation: float) -> None:
    queue = Queue(count * load / 2.0, 2.0, count, variation)
    waits = sorted(simulated_waits(queue, 200_000, random.Random(count)))
    close = 0.15 if variation else 0.25  # with equal service times it is an approximation
    assert sum(waits) / len(waits) == pytest.approx(queue.mean_wait_seconds, rel=close)
    assert waits[int(0.95 * len(waits))] == pytest.approx(queue.wait_seconds(0.95), rel=close, abs=0.05)


@given(
    arrivals=st.floats(0, 200),
    service=st.floats(0.01, 20),
    slots=st.integers(1, 64),
    wait=st.floats(0, 10),
    busy=st.floats(0.3, 1),
)
def test_replicas_are_the_fewest_that_keep_the_promise(
    arrivals: float, service: float, slots: int, wait: float, busy: float
) -> None:
    def holds(replicas: int) -> bool:
        queue = Queue(arrivals, service, replicas * slots)
        return queue.utilization <= busy and queue.wait_seconds(0.95) <= wait

    replicas = replicas_for(arrivals, service, slots, wait_seconds=wait, utilization=busy)
    assert holds(replicas)
    assert replicas == 1 or not holds(replicas - 1)


def test_more_traffic_needs_no_more_than_its_share_of_replicas() -> None:
    small, large = (replicas_for(rate, 4.0, 16, wait_seconds=0.5) for rate in (20, 200))
    assert small < large <= 10 * small


def test_a_queue_that_cannot_keep_up_waits_for_ever() -> None:
    queue = Queue(10, 1.0, 10)
    assert math.isinf(queue.mean_wait_seconds) and math.isinf(queue.wait_seconds(0.5))
    assert queue.waiting_share == 1


def test_impossible_traffic_is_refused() -> None:
    with pytest.raises(InputError, match=r"service_seconds: must be above 0, not 0"):
        replicas_for(1, 0, wait_seconds=1)
    with pytest.raises(InputError, match="share between 0 and 1"):
        replicas_for(1, 1, wait_seconds=1, share=1)
    with pytest.raises(InputError, match="more than 1,000,000 places"):
        replicas_for(1e6, 100, wait_seconds=1)
