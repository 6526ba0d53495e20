"""Frames that wait to be fetched, and the socket from which they are.

    client: the token (32 bytes)      depot: the size (8 bytes, big-endian; 0: no such frame), then the frame
    client: one byte, once it has all of it; the frame is forgotten then

A frame that nobody fetches is forgotten after a time, the oldest ones when there is no room; a client that stops
reading stops its own transfer, and is given up after a time.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from conch.disaggregated.params import TOKEN_BYTES, ContextPhaseParams
from conch_build.errors import OverloadedError

KEEP_SECONDS = 30.0
STALL_SECONDS = 10.0
"""A peer that takes or gives nothing for so long is given up."""
_TRANSFER_SECONDS = 60.0
"""Of a transfer in all, its token included, which has to come in a moment."""
_TOKEN_SECONDS = 5.0
_TRANSFERS = 16
"""At once; further ones wait."""
_SIZE = struct.Struct("!Q")


@dataclass(frozen=True)
class Figures:
    """Since the depot was opened."""

    waiting_bytes: int
    sent: int
    sent_bytes: int
    expired: int
    failed: int


class Depot:
    """`room`: bytes of frames that wait at most."""

    def __init__(self, host: str, room: int) -> None:
        """Raises OSError when the address cannot be bound."""
        self._room = room
        self._frames: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self._held = self._sent = self._sent_bytes = self._expired = self._failed = 0
        self._places = threading.BoundedSemaphore(_TRANSFERS)
        self._listener = socket.create_server((host, 0), backlog=128)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, name="conch-kv-depot", daemon=True).start()

    def put(self, frame: bytes) -> ContextPhaseParams:
        """Keep a frame until it is fetched. Raises OverloadedError for one that there is no room for at all."""
        if len(frame) > self._room:
            raise OverloadedError(f"{len(frame)} bytes of KV blocks, and {self._room} may wait", where="KV depot")
        token, now = secrets.token_bytes(TOKEN_BYTES), time.monotonic()
        with self._lock:
            self._forget_before(now - KEEP_SECONDS)
            while self._held + len(frame) > self._room:
                self._drop_oldest()
            self._frames[token] = now, frame
            self._held += len(frame)
        return ContextPhaseParams(self.host, self.port, token.hex(), len(frame))

    def figures(self) -> Figures:
        with self._lock:
            self._forget_before(time.monotonic() - KEEP_SECONDS)
            return Figures(self._held, self._sent, self._sent_bytes, self._expired, self._failed)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._places.acquire()
            threading.Thread(target=self._send, args=(peer,), name="conch-kv-send", daemon=True).start()

    def _send(self, peer: socket.socket) -> None:
        try:
            with peer:
                began = time.monotonic()
                token = _exactly(peer, TOKEN_BYTES, began + _TOKEN_SECONDS)
                end = began + _TRANSFER_SECONDS
                _limit(peer, end)
                with self._lock:
                    self._forget_before(time.monotonic() - KEEP_SECONDS)
                    frame = self._frames.get(token, (0.0, b""))[1]
                peer.sendall(_SIZE.pack(len(frame)))
                view = memoryview(frame)
                while view:
                    _limit(peer, end)
                    view = view[peer.send(view[: 1 << 20]) :]
                if frame:
                    _exactly(peer, 1, end)
                    self._fetched(token, len(frame))
        except OSError:
            with self._lock:
                self._failed += 1
        finally:
            self._places.release()

    def _fetched(self, token: bytes, size: int) -> None:
        with self._lock:
            self._sent += 1
            self._sent_bytes += size
            if self._frames.pop(token, None) is not None:
                self._held -= size

    def _forget_before(self, then: float) -> None:
        while self._frames and next(iter(self._frames.values()))[0] < then:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, frame) = self._frames.popitem(last=False)
        self._held -= len(frame)
        self._expired += 1


def _limit(peer: socket.socket, end: float) -> None:
    """The next step of a peer may take until it stalls, or until the end. Raises TimeoutError when that has come."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time is over")
    peer.settimeout(min(STALL_SECONDS, left))


def _exactly(peer: socket.socket, size: int, end: float) -> bytes:
    """Raises ConnectionError when the peer ends before, TimeoutError when it takes too long."""
    data = bytearray()
    while len(data) < size:
        _limit(peer, end)
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer has hung up")
        data += part
    return bytes(data)
