"""The choice of a server: least work first, down ones left alone, nothing lost from the books."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.client import Delta
from conch.gateway.routing.pool import Pool
from conch.gateway.routing.routed import Routed
from conch.gateway.routing.standing import FAILURES, Standing
from conch_build.errors import ConchError, OverloadedError, RequestError, ServiceError, UnavailableError

LONG = list(range(320))


@dataclass
class Server:
    """A server that does as it is told."""

    name: str
    alive: bool = True
    closed: bool = False
    answers: list[object] = field(default_factory=list)
    """What each of its streams gives next: deltas, or errors that are raised."""

    async def probe(self) -> None:
        if not self.alive:
            raise UnavailableError("down")

    async def close(self) -> None:
        self.closed = True

    def open(self) -> Stream:
        return Stream(self)


class Stream:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.cancelled = False

    async def __anext__(self) -> Delta:
        item = self._server.answers.pop(0)
        if isinstance(item, ConchError):
            raise item
        assert isinstance(item, Delta)
        return item

    def cancel(self) -> None:
        self.cancelled = True


def pool(count: int = 3) -> Pool[Server]:
    return Pool([Server(str(number)) for number in range(count)])


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400), st.booleans()), max_size=60))
def test_what_is_taken_is_given_back(requests: list[tuple[int, int, bool]]) -> None:
    servers = pool()
    places = []
    for prompt, max_tokens, leaves in requests:
        places.append(servers.pick([1] * prompt, max_tokens))
        if leaves:
            places.pop(0).leave()
    for place in places:
        place.leave()
        place.leave()
    assert [(member.standing.running, member.standing.tokens) for member in servers.members.values()] == [(0, 0)] * 3


def test_idle_servers_take_turns() -> None:
    servers = pool()
    picked = []
    for _ in range(6):
        place = servers.pick([], 10)
        picked.append(place.member.number)
        place.leave()
    assert picked == [0, 1, 2, 0, 1, 2]


def test_a_prompt_goes_where_its_start_is_known_unless_that_server_has_too_much_to_do() -> None:
    servers = pool(2)
    first = servers.pick(LONG, 100)
    first.leave()
    assert servers.pick([*LONG, 1, 2], 100).member.number == first.member.number
    for _ in range(3):
        servers.pick(LONG, 128)
    assert {servers.pick(LONG, 100).member.number for _ in range(3)} == {0, 1}


def test_another_adapter_does_not_share_the_prefix() -> None:
    servers = pool(2)
    servers.pick(LONG, 1, "a").leave()
    assert servers.pick(LONG, 1, "b").member.number == 1


def test_a_server_that_is_down_is_asked_only_when_all_are() -> None:
    servers = pool(2)
    servers.members[0].standing.probed(False, 0.0, 0.5)
    picked = [servers.pick([1], 1) for _ in range(4)]
    assert {place.member.number for place in picked} == {1}
    for place in picked:
        place.leave()
    servers.members[1].standing.probed(False, 0.0, 0.5)
    assert {servers.pick([1], 1).member.number for _ in range(4)} == {0, 1}
    with pytest.raises(UnavailableError, match="no server"):
        servers.pick([1], 1, but=set(servers.members.values()))


def test_failures_in_a_row_take_a_server_down_and_a_probe_brings_it_back() -> None:
    standing = Standing()
    for number in range(FAILURES):
        assert standing.up
        standing.failed(now=float(number))
    assert not standing.up
    assert standing.probe_at == FAILURES - 1  # at once
    standing.probed(True, 10.0, 0.5)
    assert standing.up
    standing.failed(11.0)
    standing.served()
    for _ in range(FAILURES - 1):
        standing.failed(12.0)
    assert standing.up, "a request that was served ends the row"


def test_probes_of_a_server_that_stays_down_come_at_longer_intervals() -> None:
    standing, now, waits = Standing(), 0.0, []
    for _ in range(9):
        standing.probed(False, now, 0.5)
        waits.append(standing.probe_at - now)
        now = standing.probe_at
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == 15.0


def token(last: bool = False) -> Delta:
    return Delta(tokens=(1,), finish_reason="stop" if last else None)


def routed(servers: Pool[Server]) -> Routed[Server]:
    return Routed(servers, [1, 2], 8, None, lambda server: server.open())


@pytest.mark.parametrize("error", [UnavailableError("gone"), ServiceError("broken"), OverloadedError("full")])
async def test_what_fails_before_the_first_token_goes_on_to_another_server(error: ConchError) -> None:
    servers = pool(2)
    servers.doors[0].answers = [error]
    servers.doors[1].answers = [token(), token(last=True)]
    stream = routed(servers)
    deltas = [await stream.__anext__(), await stream.__anext__()]
    assert [delta.finish_reason for delta in deltas] == [None, "stop"]
    assert stream.server == "1"
    assert servers.members[0].standing.retries == 1
    assert servers.members[0].standing.failures == (0 if isinstance(error, OverloadedError) else 1)
    assert [member.standing.running for member in servers.members.values()] == [0, 0]


async def test_after_the_first_token_nothing_is_tried_again() -> None:
    servers = pool(2)
    servers.doors[0].answers = [token(), ServiceError("broken")]
    stream = routed(servers)
    await stream.__anext__()
    with pytest.raises(ServiceError, match="broken"):
        await stream.__anext__()
    assert servers.members[0].standing.retries == servers.members[1].standing.requests == 0


async def test_a_request_that_is_wrong_is_wrong_everywhere() -> None:
    servers = pool(2)
    servers.doors[0].answers = [RequestError("no", param="top_p")]
    with pytest.raises(RequestError):
        await routed(servers).__anext__()
    assert servers.members[0].standing.failures == servers.members[1].standing.requests == 0


async def test_when_all_have_failed_the_first_reason_of_the_last_is_told() -> None:
    servers = pool(2)
    for door in servers.doors:
        door.answers = [UnavailableError(f"{door.name} is gone")]
    with pytest.raises(UnavailableError, match="1 is gone"):
        await routed(servers).__anext__()


async def test_the_pool_is_alive_as_long_as_one_server_is() -> None:
    servers = pool(2)
    servers.doors[0].alive = False
    await servers.probe()
    assert [member.standing.up for member in servers.members.values()] == [False, True]
    servers.doors[1].alive = False
    with pytest.raises(UnavailableError):
        await servers.probe()


async def test_who_leaves_gets_no_new_request_and_its_last_ones_end_in_peace() -> None:
    servers = pool(2)
    counts: list[int] = []
    servers.on_change(counts.append)
    running = [servers.pick([1], 8) for _ in range(2)]
    leaving = asyncio.ensure_future(servers.leave("0", 60))
    await asyncio.sleep(0)
    assert {servers.pick([1], 8).door.name for _ in range(3)} == {"1"}
    await asyncio.sleep(0.02)
    assert not leaving.done() and not running[0].door.closed
    running[0].leave()
    await leaving
    assert running[0].door.closed
    assert counts == [1]


async def test_who_leaves_is_not_waited_for_any_longer_than_said() -> None:
    servers = pool(2)
    place = servers.pick([1], 8)
    await servers.leave(place.door.name, 0.01)
    assert place.door.closed
    place.leave()
    await servers.leave("nobody", 60)


async def test_who_joins_is_asked_and_has_the_place_and_nothing_of_the_memory_of_who_left() -> None:
    servers = pool(2)
    servers.pick(LONG, 8).leave()
    await servers.leave("0", 1)
    servers.join(Server("new"))
    assert servers.members[0].door.name == "new"
    assert servers.pick([*LONG, 1], 8).tokens == len(LONG) + 1 + 8
    with pytest.raises(ValueError, match="belongs to the pool already"):
        servers.join(Server("new"))


async def test_a_pool_may_be_empty_for_a_while() -> None:
    servers = pool(1)
    await servers.leave("0", 1)
    with pytest.raises(UnavailableError, match="no server now"):
        servers.pick([1], 8)
    with pytest.raises(UnavailableError, match="no server now"):
        await servers.probe()
    servers.join(Server("1"))
    assert servers.pick([1], 8).door.name == "1"


async def test_a_watched_server_that_comes_back_is_asked_again() -> None:
    servers = pool(2)
    servers.doors[0].alive = False
    async with servers.watched():
        for alive in (False, True):
            servers.doors[0].alive = alive
            for _ in range(100):
                if servers.members[0].standing.up is alive:
                    break
                await asyncio.sleep(0.05)
            assert servers.members[0].standing.up is alive
