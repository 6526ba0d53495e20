"""Getting a frame from where it lies. What does not come whole is an error within a stated time, never a wait."""

from __future__ import annotations

import socket
import struct
import time

from conch.disaggregated.depot import STALL_SECONDS
from conch.disaggregated.params import ContextPhaseParams
from conch_build.errors import UnavailableError

CONNECT_SECONDS = 2.0
_SIZE = struct.Struct("!Q")


def fetch(params: ContextPhaseParams, seconds: float) -> bytes:
    """The frame, in `seconds` at most. Raises UnavailableError when it is not to be had."""
    end = time.monotonic() + seconds
    where = f"{params.host}:{params.port}"
    try:
        with socket.create_connection((params.host, params.port), min(CONNECT_SECONDS, seconds)) as peer:
            peer.sendall(bytes.fromhex(params.token))
            (size,) = _SIZE.unpack(_read(peer, _SIZE.size, end))
            if not size:
                raise UnavailableError("the KV blocks of the prompt are no longer there", where=where)
            if size != params.size:
                raise UnavailableError(f"{size} bytes of KV blocks, and {params.size} were told", where=where)
            frame = _read(peer, size, end)
            peer.sendall(b"\1")
            return bytes(frame)
    except OSError as error:  # a timeout is one, too
        raise UnavailableError(f"the KV blocks of the prompt did not come: {error}", where=where) from None


def _read(peer: socket.socket, size: int, end: float) -> bytearray:
    """Raises OSError."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over")
        peer.settimeout(min(left, STALL_SECONDS))
        count = peer.recv_into(view)
        if not count:
            raise ConnectionError("the connection broke off")
        view = view[count:]
    return data
