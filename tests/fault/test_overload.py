"""Ten times what a gateway takes, a storm of cancellations, readers that do not read: and then as before."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from statistics import median
from typing import Any

import httpx
import pytest

from tests.contract.conftest import Gateway, eventually
from tests.fault.conftest import LONG, SHORT, Footprint, NewGateway, Stream, is_idle, settles

MIB = 1 << 20
pytestmark = pytest.mark.slow


async def test_ten_times_the_load_is_shed_and_leaves_the_gateway_as_it_was(new_gateway: NewGateway) -> None:
    running, waiting = 8, 16
    with new_gateway(queue={"running": running, "waiting": waiting}) as gateway:
        await crowd(gateway, running + waiting)  # whatever grows once has grown
        usual = seconds_of(gateway)
        before = Footprint.of(gateway)
        answers = await crowd(gateway, 10 * (running + waiting))
        statuses = Counter(status for status, _, _ in answers)
        assert statuses.keys() == {200, 429}
        assert statuses[200] >= running + waiting
        assert statuses[429] > 100
        assert all(1 <= int(headers["retry-after"]) <= 60 for status, _, headers in answers if status == 429)
        refused, answered = (median([time for status, time, _ in answers if status == kind]) for kind in (429, 200))
        assert refused < answered
        shed = gateway.metric("conch:shed_requests_total", reason="queue_full")
        assert shed == statuses[429]
        assert settles(gateway, before, more_bytes=32 * MIB), Footprint.of(gateway)
        assert seconds_of(gateway) < 3 * usual + 0.2


async def test_what_is_let_in_under_overload_makes_its_deadline_or_is_told_early(new_gateway: NewGateway) -> None:
    with new_gateway(queue={"running": 4, "waiting": 400}) as gateway:
        answers = await crowd(gateway, 200, timeout=5.0, max_tokens=10)
        statuses = Counter(status for status, _, _ in answers)
        assert statuses.keys() <= {200, 503, 504}
        assert statuses[200] > 4
        assert max(seconds for _, seconds, _ in answers) < 15  # of a client with 200 connections on a busy machine
        # How fast the line moves is known by now: nobody waits in vain.
        again = await crowd(gateway, 200, timeout=5.0, max_tokens=10)
        early = [seconds for status, seconds, _ in again if status == 503]
        assert early
        assert gateway.metric("conch:shed_requests_total", reason="deadline") > 0
        assert eventually(lambda: is_idle(gateway))


async def test_a_storm_of_cancellations_frees_every_block(new_gateway: NewGateway) -> None:
    with new_gateway() as gateway:
        before = Footprint.of(gateway)
        aborts = gateway.metric("vllm:request_success_total", finished_reason="abort")
        for _ in range(3):
            await asyncio.gather(*(leave(gateway, number) for number in range(60)))
        assert eventually(lambda: is_idle(gateway), seconds=5)
        ended = gateway.metric("vllm:request_success_total", finished_reason="abort") - aborts
        assert ended == 180
        assert settles(gateway, before, more_bytes=48 * MIB), Footprint.of(gateway)
        assert gateway.ok("completions", **SHORT)


def test_readers_that_do_not_read_hold_neither_memory_nor_the_engine(new_gateway: NewGateway) -> None:
    with new_gateway(limits={"write_timeout": "2s"}) as gateway:
        before = Footprint.of(gateway)
        aborts = gateway.metric("vllm:request_success_total", finished_reason="abort")
        readers = [unread(gateway) for _ in range(6)]
        assert eventually(lambda: gateway.metric("vllm:num_requests_running") == 6, seconds=20)
        other = Stream(gateway, max_tokens=50)
        other.join(60)
        assert json.loads(other.events[-2])["choices"][0]["finish_reason"] == "length"
        most = 0
        end = time.monotonic() + 90
        while not is_idle(gateway) and time.monotonic() < end:
            most = max(most, Footprint.of(gateway).bytes)
            time.sleep(0.2)
        assert gateway.metric("vllm:request_success_total", finished_reason="abort") == aborts + 6
        assert most - before.bytes < 64 * MIB
        assert eventually(lambda: Footprint.of(gateway).files <= before.files + 2)
        for reader in readers:
            reader.close()


def test_a_reader_that_does_not_read_does_not_hold_up_the_end(new_gateway: NewGateway) -> None:
    with new_gateway(limits={"drain_timeout": "1s"}) as gateway:
        reader = unread(gateway)
        assert eventually(lambda: gateway.metric("vllm:num_requests_running") == 1)
        time.sleep(8)  # until all buffers on the way are full
        started = time.monotonic()
        gateway.process.terminate()
        assert gateway.process.wait(15) == 0
        assert time.monotonic() - started < 6
        reader.close()


async def crowd(
    gateway: Gateway, count: int, *, max_tokens: int = 8, **more: Any
) -> list[tuple[int, float, httpx.Headers]]:
    """So many requests at once: status, seconds and headers of each answer."""

    async def one(number: int) -> tuple[int, float, httpx.Headers]:
        started = time.monotonic()
        body = {**SHORT, "prompt": f"{number}, ", "max_tokens": max_tokens, "ignore_eos": True, **more}
        response = await http.post("/v1/completions", json=body)
        return response.status_code, time.monotonic() - started, response.headers

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120, trust_env=False, limits=limits) as http:
        return await asyncio.gather(*map(one, range(count)))


async def leave(gateway: Gateway, number: int) -> None:
    """Begin an answer and leave it: after its first event, or before it has one."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as http:
        if number % 3:
            async with http.stream("POST", "/v1/completions", json=LONG) as response:
                async for _ in response.aiter_lines():
                    break
        else:
            body = {**LONG, "stream": False}
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/completions", json=body, timeout=httpx.Timeout(60, read=1.5))


def seconds_of(gateway: Gateway) -> float:
    """How long a short answer takes: the median of some."""
    times = []
    for _ in range(7):
        started = time.monotonic()
        gateway.ok("completions", **SHORT)
        times.append(time.monotonic() - started)
    return median(times)


def unread(gateway: Gateway) -> socket.socket:
    """A request whose long answer nobody reads, over a connection with little room."""
    host, port = gateway.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    wordy = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    raw = json.dumps({"messages": [{"role": "user", "content": "Count."}], **wordy}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
    )
    sock.sendall(head.encode() + b"\r\n\r\n" + raw)
    return sock
