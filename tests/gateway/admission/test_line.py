"""The line before an engine: who goes first, who waits, who is sent away, and when to come again."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.gateway.admission.line import Bounds, Line, Wish
from conch.gateway.errors import Draining, QueueFull, TooLate


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def line_of(running: int = 1, running_tokens: float = math.inf, waiting: int = 10, **more: Any) -> Line:
    return Line(
        Bounds(running, running_tokens, waiting, more.get("waiting_tokens", math.inf)), more.get("clock", Clock())
    )


class Crowd:
    """Requests that enter a line, and the names of those who are in, in the order in which they came in."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.inside: list[str] = []
        self.wishes: dict[str, Wish] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tokens: int = 10, answers: int = 1, **more: Any) -> None:
        self.wishes[name] = Wish(answers, tokens, **more)
        self.tasks[name] = asyncio.ensure_future(self._enter(name))
        await settle()

    async def leave(self, name: str) -> None:
        self.line.leave(self.wishes[name])
        await settle()

    async def _enter(self, name: str) -> None:
        await self.line.enter(self.wishes[name])
        self.inside.append(name)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_came_first_goes_first() -> None:
    crowd = Crowd(line_of())
    for name in "abc":
        await crowd.come(name)
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    await crowd.leave("b")
    assert crowd.inside == ["a", "b", "c"]


async def test_a_higher_rank_goes_before_all_lower_ones() -> None:
    crowd = Crowd(line_of())
    await crowd.come("first")
    await crowd.come("flex", rank=-1)
    await crowd.come("default")
    await crowd.come("priority", rank=1)
    for name in ("first", "priority", "default"):
        await crowd.leave(name)
    assert crowd.inside == ["first", "priority", "default", "flex"]


async def test_tokens_bound_what_is_let_in_and_nobody_passes_the_first_in_line() -> None:
    crowd = Crowd(line_of(running=10, running_tokens=100))
    await crowd.come("small", 60)
    await crowd.come("big", 50)
    await crowd.come("tiny", 1)
    assert crowd.inside == ["small"]
    await crowd.leave("small")
    assert crowd.inside == ["small", "big", "tiny"]


async def test_what_is_more_than_everything_goes_alone() -> None:
    crowd = Crowd(line_of(running=4, running_tokens=100))
    await crowd.come("a", 10)
    await crowd.come("huge", 500, answers=9)
    await crowd.come("b", 10)
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["a", "huge"]
    await crowd.leave("huge")
    assert crowd.inside == ["a", "huge", "b"]


async def test_a_caller_with_many_requests_does_not_delay_one_with_few() -> None:
    crowd = Crowd(line_of())
    await crowd.come("running", caller="many")
    for number in range(5):
        await crowd.come(f"many-{number}", caller="many")
    await crowd.come("few", caller="few")
    await crowd.leave("running")
    await crowd.leave("many-0")
    assert crowd.inside == ["running", "many-0", "few"]


async def test_a_full_line_refuses_and_says_when_to_come_again() -> None:
    clock = Clock()
    crowd = Crowd(line_of(waiting=2, clock=clock))
    for name in "abc":
        await crowd.come(name)
    with pytest.raises(QueueFull) as refusal:
        await crowd.line.enter(Wish(1, 10))
    assert refusal.value.headers == {}  # nothing was measured yet

    clock.now = 4.0
    await crowd.leave("a")  # ten tokens in four seconds, and twenty wait: ten of them in four seconds
    await crowd.come("d")
    with pytest.raises(QueueFull) as refusal:
        await crowd.line.enter(Wish(1, 10))
    assert refusal.value.headers == {"retry-after": "4", "retry-after-ms": "4000"}


async def test_tokens_that_wait_are_bounded_too() -> None:
    crowd = Crowd(line_of(waiting_tokens=25))
    for name in "abc":
        await crowd.come(name)
    with pytest.raises(QueueFull):
        await crowd.line.enter(Wish(1, 10))
    await crowd.come("little", 5)
    assert crowd.line.waiting == 3


async def test_a_full_line_makes_room_for_a_higher_rank_by_sending_the_last_away() -> None:
    crowd = Crowd(line_of(waiting=2))
    for name in "abc":
        await crowd.come(name)
    await crowd.come("urgent", rank=1)
    assert isinstance(crowd.tasks["c"].exception(), QueueFull)
    await crowd.leave("a")
    assert crowd.inside == ["a", "urgent"]


async def test_who_would_wait_longer_than_its_time_is_sent_away_at_once() -> None:
    clock = Clock()
    crowd = Crowd(line_of(clock=clock))
    for name in "abc":
        await crowd.come(name)
    clock.now = 2.0
    await crowd.leave("a")  # ten tokens in two seconds
    assert crowd.line.waiting == 1
    with pytest.raises(TooLate) as refusal:
        await crowd.line.enter(Wish(1, 10, latest=clock.now + 1.9))
    assert refusal.value.headers["retry-after"] == "2"
    await crowd.come("patient", latest=clock.now + 2.1)
    assert crowd.line.waiting == 2


async def test_who_leaves_while_waiting_takes_nothing_with_it() -> None:
    crowd = Crowd(line_of())
    for name in "abc":
        await crowd.come(name)
    crowd.tasks["b"].cancel()
    await settle()
    assert (crowd.line.waiting, crowd.line.waiting_tokens) == (1, 10)
    await crowd.leave("a")
    assert crowd.inside == ["a", "c"]


async def test_a_turn_that_comes_as_its_caller_leaves_is_given_to_the_next() -> None:
    crowd = Crowd(line_of())
    for name in "abc":
        await crowd.come(name)
    crowd.line.leave(crowd.wishes["a"])
    crowd.tasks["b"].cancel()
    await settle()
    assert crowd.inside == ["a", "c"]
    assert crowd.line.running == 1


async def test_who_leaves_as_its_turn_comes_is_passed_over() -> None:
    crowd = Crowd(line_of())
    for name in "abc":
        await crowd.come(name)
    crowd.tasks["b"].cancel()
    crowd.line.leave(crowd.wishes["a"])
    await settle()
    assert crowd.inside == ["a", "c"]
    assert (crowd.line.running, crowd.line.waiting, crowd.line.waiting_tokens) == (1, 0, 0)


async def test_a_line_that_is_cleared_sends_all_away_and_lets_the_running_end() -> None:
    crowd = Crowd(line_of())
    for name in "abc":
        await crowd.come(name)
    crowd.line.clear(Draining())
    await settle()
    assert all(isinstance(crowd.tasks[name].exception(), Draining) for name in "bc")
    await crowd.leave("a")
    assert (crowd.line.running, crowd.line.running_tokens, crowd.line.waiting) == (0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 6), st.integers(1, 200), st.integers(-1, 1), st.sampled_from("xyz"), st.integers(0, 3)
        ),
        max_size=40,
    )
)
def test_whatever_comes_bounds_hold_and_nothing_is_left(requests: list[tuple[int, int, int, str, int]]) -> None:
    async def one(line: Line, answers: int, tokens: int, rank: int, caller: str, fate: int) -> None:
        wish = Wish(answers, tokens, rank, caller)
        try:
            await asyncio.wait_for(line.enter(wish), 0.001 * fate if fate else None)
        except (QueueFull, asyncio.TimeoutError):
            return
        assert line.running == answers or (line.running <= 4 and line.running_tokens <= 300)
        assert line.waiting <= 8
        await asyncio.sleep(0)
        line.leave(wish)

    async def all_of_them() -> None:
        line = Line(Bounds(4, 300, 8, 1000))
        await asyncio.gather(*(one(line, *request) for request in requests))
        assert (line.running, line.running_tokens, line.waiting, line.waiting_tokens) == (0, 0, 0, 0)

    asyncio.run(all_of_them())
