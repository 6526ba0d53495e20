"""Frames over real sockets: whole or not at all, in a stated time, and nothing is kept for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.backend.handover import PEERS_VARIABLE, check_peer
from conch.disaggregated import depot as module
from conch.disaggregated.depot import Depot
from conch.disaggregated.fetch import fetch
from conch.disaggregated.params import ContextPhaseParams
from conch_build.errors import OverloadedError, RequestError, UnavailableError


@pytest.fixture
def depot() -> Iterator[Depot]:
    depot = Depot("127.0.0.1", 8 << 20)
    yield depot
    depot.close()


def settled(depot: Depot, **figures: int) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        told = dataclasses.asdict(depot.figures())
        if all(told[name] == value for name, value in figures.items()):
            return True
        time.sleep(0.01)
    return False


def test_a_frame_comes_as_it_was_and_only_once(depot: Depot) -> None:
    frame = secrets.token_bytes(3_000_001)
    params = depot.put(frame)
    assert fetch(ContextPhaseParams.from_bytes(params.to_bytes()), 5) == frame
    assert settled(depot, sent=1, sent_bytes=len(frame), waiting_bytes=0)
    with pytest.raises(UnavailableError, match="no longer there"):
        fetch(params, 5)


@given(st.binary(max_size=300))
def test_what_is_no_params_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(RequestError, match="context_phase_params"):
        ContextPhaseParams.from_bytes(data)


def test_who_does_not_know_the_token_gets_nothing_and_the_frame_stays(depot: Depot) -> None:
    params = depot.put(b"x" * 100)
    with pytest.raises(UnavailableError, match="no longer there"):
        fetch(dataclasses.replace(params, token="00" * 32), 5)
    assert fetch(params, 5) == b"x" * 100


def test_many_are_fetched_at_once(depot: Depot) -> None:
    frames = [secrets.token_bytes(100_000) for _ in range(40)]
    params = [depot.put(frame) for frame in frames]
    got: list[bytes | None] = [None] * len(frames)

    def get(index: int) -> None:
        got[index] = fetch(params[index], 20)

    threads = [threading.Thread(target=get, args=(index,)) for index in range(len(frames))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == frames


def test_what_nobody_fetches_is_forgotten_and_the_oldest_makes_room(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = [depot.put(bytes([number]) * (3 << 20)) for number in range(3)]
    assert depot.figures().waiting_bytes == 6 << 20
    with pytest.raises(UnavailableError):
        fetch(first, 5)
    assert fetch(others[1], 5)[0] == 2
    with pytest.raises(OverloadedError, match="may wait"):
        depot.put(bytes(9 << 20))
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.05)
    time.sleep(0.1)
    assert depot.figures().waiting_bytes == 0


def test_a_transfer_that_breaks_off_can_be_made_again(depot: Depot) -> None:
    params = depot.put(secrets.token_bytes(4 << 20))
    with socket.create_connection((params.host, params.port)) as peer:
        peer.sendall(bytes.fromhex(params.token))
        peer.recv(1000)
    assert settled(depot, failed=1)
    assert len(fetch(params, 5)) == 4 << 20


def test_a_reader_that_stalls_is_given_up_and_holds_nobody_up(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.3)
    params, other = depot.put(secrets.token_bytes(7 << 20)), depot.put(b"y" * 1000)
    with socket.create_connection((params.host, params.port)) as peer:
        peer.sendall(bytes.fromhex(params.token))
        assert fetch(other, 5) == b"y" * 1000
        assert settled(depot, failed=1)


def test_a_reader_that_only_trickles_has_its_time_as_well(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRANSFER_SECONDS", 0.5)
    monkeypatch.setattr(module, "_TOKEN_SECONDS", 0.3)
    params = depot.put(secrets.token_bytes(7 << 20))
    for sent in (params.token[:2], params.token):
        with socket.create_connection((params.host, params.port)) as peer:
            peer.sendall(bytes.fromhex(sent))
            for _ in range(20):
                time.sleep(0.05)
                with contextlib.suppress(OSError):
                    peer.sendall(b"") if sent == params.token else peer.sendall(b"x")
                    if sent == params.token:
                        peer.recv(10)
    assert settled(depot, failed=2)


def test_bytes_that_changed_on_their_way_are_not_used() -> None:
    from conch.engine.state import KvState

    state = KvState("layout", (1, 2, 3), (4,), 3, [np.arange(64, dtype=np.float32).reshape(4, 16)])
    frame = state.to_bytes()
    for at in range(0, len(frame), 7):
        damaged = bytearray(frame)
        damaged[at] ^= 0x40
        with pytest.raises(RequestError, match="KV state"):
            KvState.from_bytes(bytes(damaged))
    for cut in (0, 10, len(frame) // 2, len(frame) - 1):
        with pytest.raises(RequestError, match="KV state"):
            KvState.from_bytes(frame[:cut])


@pytest.mark.parametrize("behaviour", ["silent", "half", "trickle", "closed", "size"])
def test_an_end_that_does_not_give_the_frame_is_an_error_in_time(behaviour: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.recv(32)
            if behaviour == "closed":
                return
            if behaviour == "size":
                peer.sendall((99).to_bytes(8, "big"))
            elif behaviour != "silent":
                peer.sendall((1000).to_bytes(8, "big") + b"x" * 500)
                for _ in range(100 if behaviour == "trickle" else 0):
                    time.sleep(0.05)
                    peer.sendall(b"x")
            time.sleep(3)

    threading.Thread(target=serve, daemon=True).start()
    params = ContextPhaseParams("127.0.0.1", listener.getsockname()[1], "ab" * 32, 1000)
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        fetch(params, 1.0)
    assert time.monotonic() - began < 2.5
    listener.close()
    with pytest.raises(UnavailableError, match="did not come"):
        fetch(params, 1.0)


def test_a_request_does_not_choose_whom_this_machine_connects_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PEERS_VARIABLE, raising=False)
    for host in ("127.0.0.1", "::1", "127.8.8.8"):
        check_peer(host)
    for host in ("10.0.0.7", "localhost", "169.254.169.254", "", "0.0.0.0", "127.0.0.1.evil.example"):
        with pytest.raises(RequestError, match="is no engine that KV blocks may be fetched from"):
            check_peer(host)
    monkeypatch.setenv(PEERS_VARIABLE, "10.0.0.7, reader.local")
    for host in ("10.0.0.7", "reader.local", "127.0.0.1"):
        check_peer(host)
    with pytest.raises(RequestError):
        check_peer("10.0.0.70")
