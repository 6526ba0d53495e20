"""Servers behind a name: they come and go with what the name stands for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from conch.gateway.routing import addresses as module
from conch.gateway.routing.addresses import addresses, resolved
from conch.gateway.served import Catalog, Served
from conch.gateway.settings import ModelSettings
from conch.gateway.watching.metrics import Metrics
from conch_build.errors import InputError

if TYPE_CHECKING:
    from conch_build.pipeline import BuildResult


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def test_servers_follow_the_name_and_a_failed_look_up_changes_nothing(
    sample_build: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKUP_SECONDS", 0.01)
    served = Served(ModelSettings.for_engine(sample_build.engine.path, []), Metrics())
    answers: list[set[str] | OSError] = [{"10.0.0.1", "10.0.0.2"}]

    async def resolve(host: str, port: int) -> set[str]:
        assert (host, port) == ("triton", 8001)
        if isinstance(answers[-1], OSError):
            raise answers[-1]
        return answers[-1]

    def known() -> dict[str, str | None]:
        return {door.name: door.metrics_url for door in served.upstream.pool.doors}

    follow = addresses("smollm2", "triton:8001", "http://triton:8002/metrics", 5, resolve)
    following = asyncio.ensure_future(follow(Catalog([served])))
    try:
        await until(lambda: len(known()) == 2)
        assert known()["10.0.0.1:8001"] == "http://10.0.0.1:8002/metrics"
        answers.append(socket.gaierror(-2, "Name or service not known"))
        await asyncio.sleep(0.05)
        assert len(known()) == 2
        answers.append({"10.0.0.2", "fd00::3"})
        await until(lambda: sorted(known()) == ["10.0.0.2:8001", "[fd00::3]:8001"])
        assert known()["[fd00::3]:8001"] == "http://[fd00::3]:8002/metrics"
        answers.append({"10.0.0.1"})  # it is back
        await until(lambda: list(known()) == ["10.0.0.1:8001"])
    finally:
        following.cancel()
        await asyncio.wait((following,))
    assert following.cancelled()


async def test_names_are_looked_up_for_real() -> None:
    assert "127.0.0.1" in await resolved("localhost", 8001)
    with pytest.raises(OSError):
        await resolved("nobody.invalid", 8001)


@pytest.mark.parametrize("url", ["triton", "triton:", ":8001", "triton:http"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(InputError, match="is no host:port"):
        addresses("m", url, None, 5)
