"""When requests are sent, and what a stall costs whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
import scipy.stats

from conch.bench.traffic.loads import Generator, Session, Turn, poisson
from conch.bench.traffic.ramp import ramp_concurrency, ramp_rate
from conch.bench.traffic.record import Ask, Content, Record
from conch_build.errors import OverloadedError


class Server:
    """Answers one token after `seconds`, one request at a time where it is `serial`."""

    def __init__(self, seconds: float = 0.01, serial: bool = False, fails: bool = False) -> None:
        self.seconds, self.fails = seconds, fails
        self.lock = asyncio.Semaphore(1 if serial else 1000)
        self.running = self.most = 0
        self.asked: list[Ask] = []

    async def send(self, ask: Ask, record: Record, now: Callable[[], float]) -> Content:
        if self.fails:
            raise OverloadedError("too many", where="server")
        self.asked.append(ask)
        self.running += 1
        self.most = max(self.most, self.running)
        async with self.lock:
            await asyncio.sleep(self.seconds)
        self.running -= 1
        record.arrived(now())
        record.tokens = 1
        return f"answer {len(self.asked)}"

    async def close(self) -> None: ...


def sessions(count: int, turns: int = 1) -> list[Session]:
    return [Session(n, "m", tuple(Turn(f"question {t}", 8) for t in range(turns))) for n in range(count)]


async def test_a_closed_loop_keeps_so_many_running() -> None:
    server = Server()
    records = await Generator(server).closed(iter(sessions(20)), 4)
    assert (server.most, len(records)) == (4, 20)
    assert all(record.due == record.sent or record.sent - record.due < 0.01 for record in records)


async def test_a_duration_ends_a_closed_loop() -> None:
    records = await Generator(Server()).closed(iter(sessions(10_000)), 2, duration=0.2)
    assert 4 < len(records) < 100


async def test_a_stalling_server_is_charged_for_those_who_would_have_come_meanwhile() -> None:
    """One request each 10 ms, each of which takes 50 ms of the only worker: the tenth waits for nine others."""
    records = await Generator(Server(0.05, serial=True)).opened(iter(sessions(10)), [0.01 * n for n in range(10)])
    last = max(records, key=lambda record: record.number)
    assert last.e2e == pytest.approx(10 * 0.05 - 0.09, abs=0.05)
    assert last.due == pytest.approx(0.09)


async def test_a_late_generator_charges_itself_to_the_latency() -> None:
    generator = Generator(Server(0.01))

    async def hog() -> None:
        await asyncio.sleep(0.01)
        import time

        time.sleep(0.2)

    hogging = asyncio.create_task(hog())
    records = await generator.opened(iter(sessions(2)), [0.0, 0.05])
    await hogging
    assert max(records, key=lambda r: r.due).ttft > 0.15


async def test_each_turn_holds_what_was_said_before() -> None:
    server = Server()
    records = await Generator(server, think=0.05).closed(iter(sessions(1, turns=3)), 1)
    assert server.asked[2].parts == ("question 0", "answer 1", "question 1", "answer 2", "question 2")
    assert records[1].due - records[0].ended == pytest.approx(0.05)


async def test_errors_and_timeouts_are_kept_by_their_kind() -> None:
    (refused,) = await Generator(Server(fails=True)).closed(iter(sessions(1)), 1)
    (slow,) = await Generator(Server(5), timeout=0.05).closed(iter(sessions(1)), 1)
    assert (refused.error, refused.message, slow.error) == ("overloaded", "server: too many", "timeout")


def test_poisson_arrivals_are_exponentially_apart() -> None:
    starts = poisson(20.0, 4000, seed=1)
    gaps = [after - before for before, after in pairwise(starts)]
    assert starts[0] == 0 and starts == poisson(20.0, 4000, seed=1)
    assert scipy.stats.kstest(gaps, "expon", args=(0, 1 / 20)).pvalue > 0.01


async def test_a_ramp_ends_where_more_requests_bring_no_more_tokens() -> None:
    async def measure(level: float) -> dict[str, object]:
        return {"tokens_per_second": min(level * 10, 85), "errors": {}}

    assert await ramp_concurrency(measure) == 16  # 8 -> 80, 16 -> 85 (6 % more), 32 -> 85


@pytest.mark.parametrize("limit", [7.0, 23.0])
async def test_a_ramp_of_rates_closes_in_on_the_highest_that_is_kept_up_with(limit: float) -> None:
    async def measure(rate: float) -> dict[str, object]:
        return {"kept_share": min(limit / rate, 1), "errors": {}, "slo_met": None}

    held = await ramp_rate(measure, 1.0)
    assert limit * 0.85 < held <= limit / 0.95


async def test_a_rate_that_misses_the_slo_does_not_count() -> None:
    async def measure(rate: float) -> dict[str, object]:
        return {"kept_share": 1.0, "errors": {}, "slo_met": rate < 5}

    assert 4 <= await ramp_rate(measure, 1.0) < 5
