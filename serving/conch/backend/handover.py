"""The two halves of a disaggregated request, as the model `tensorrt_llm` meets them.

A context request ends with its first token, and its KV blocks wait to be fetched; a generation request fetches those of
its prompt, and goes on from there. Whatever goes wrong on the way ends the request with an error.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from conch.backend.tensors import Call
from conch.disaggregated.depot import Depot, Figures
from conch.disaggregated.fetch import fetch
from conch.disaggregated.params import ContextPhaseParams
from conch.engine.request import Output
from conch.engine.state import KvState
from conch_build.errors import ConchError, RequestError, ServiceError

HOST_VARIABLE = "CONCH_KV_HOST"
"""The address at which other engines reach this one; loopback where it is not set."""
PEERS_VARIABLE = "CONCH_KV_PEERS"
"""Addresses beside loopback, with commas between, that KV blocks may be fetched from: a request must not choose whom
this machine connects to."""
_ROOM_BYTES = 1 << 30
_FETCH_SECONDS = 20.0
_FETCHES = 8
"""At once; further ones wait, within their time."""


class Handover:
    def __init__(self, engine: Any) -> None:
        """`engine`: as `conch.engine.Engine`."""
        self._engine = engine
        self._depot: Depot | None = None
        self._fetches = ThreadPoolExecutor(_FETCHES, "conch-kv-fetch")
        self._lock = threading.Lock()
        self._received = self._received_bytes = self._broken = 0
        self._seconds = 0.0

    def keep(self, output: Output) -> tuple[bytes, Output]:
        """Keep the state of a context request: its `context_phase_params`, and the output without it."""
        assert output.state is not None
        try:
            if self._depot is None:
                self._depot = Depot(os.environ.get(HOST_VARIABLE, "127.0.0.1"), _ROOM_BYTES)
            params = self._depot.put(output.state.to_bytes())
        except OSError as error:
            failure = ServiceError(f"KV blocks cannot be given away: {error}", where=HOST_VARIABLE)
            return b"", replace(output, state=None, finish_reason="error", error=failure)
        except ConchError as error:
            return b"", replace(output, state=None, finish_reason="error", error=error)
        return params.to_bytes(), replace(output, state=None)

    def take_over(self, call: Call, sink: Callable[[Output], None]) -> None:
        """Submit a generation request once its blocks are here; an error goes to `sink` as its last output."""
        self._fetches.submit(self._take_over, call, sink, time.monotonic())

    def figures(self) -> dict[str, dict[str, float]]:
        """What has travelled: counter -> kind -> value; nothing before the first."""
        sent = self._depot.figures() if self._depot else Figures(0, 0, 0, 0, 0)
        with self._lock:
            counts: dict[str, float] = {
                "sent": sent.sent,
                "expired": sent.expired,
                "send_failed": sent.failed,
                "received": self._received,
                "receive_failed": self._broken,
            }
            if not any(counts.values()):
                return {}
            return {
                "kv_transfers": counts,
                "kv_transfer_bytes": {"sent": sent.sent_bytes, "received": self._received_bytes},
                "kv_transfer_seconds": {"received": self._seconds},
            }

    def close(self) -> None:
        self._fetches.shutdown(wait=False, cancel_futures=True)
        if self._depot is not None:
            self._depot.close()

    def _take_over(self, call: Call, sink: Callable[[Output], None], began: float) -> None:
        end = began + _FETCH_SECONDS
        if call.request.deadline is not None:
            end = min(end, call.request.deadline)
        try:
            params = ContextPhaseParams.from_bytes(call.context_phase)
            check_peer(params.host)
            frame = fetch(params, max(0.001, end - time.monotonic()))
            state = KvState.from_bytes(frame)
            with self._lock:
                self._received += 1
                self._received_bytes += len(frame)
                self._seconds += time.monotonic() - began
            self._engine.submit(replace(call.request, state=state), sink)
        except ConchError as error:
            with self._lock:
                self._broken += 1
            sink(Output(call.request.id, finish_reason="error", error=error, final=True))
        except Exception as error:  # whatever it is, the caller must hear of it
            failure = ServiceError(f"the KV blocks could not be taken over: {error}")
            sink(Output(call.request.id, finish_reason="error", error=failure, final=True))


def check_peer(host: str) -> None:
    """Raises RequestError for an address that is neither loopback nor a peer's."""
    peers = [peer.strip() for peer in os.environ.get(PEERS_VARIABLE, "").split(",")]
    try:
        known = ipaddress.ip_address(host).is_loopback
    except ValueError:
        known = False
    if not known and (not host or host not in peers):
        raise RequestError(
            f"{host[:80]!r} is no engine that KV blocks may be fetched from",
            param="context_phase_params",
            code="invalid_value",
            fix=f"Name it in {PEERS_VARIABLE} where Triton is started.",
        )
