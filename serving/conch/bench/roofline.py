"""How fast memory lets a model decode, and the bandwidth that says so.

A decode step reads every weight once and every cached key and value of its sequences. The bandwidth is measured by
a read shaped like that: as many pieces as the model has matrices, of their sizes, shared out over the cores. libc's
memcmp reads them, a piece's one half against its other: it looks at every byte, keeps nothing, lets Python's other
threads run, and was faster here than memchr or sums by NumPy.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Sequence

_ROUNDS = 12


def step_bytes(weight_bytes: float, kv_bytes_per_token: float, sequences: int, context: float) -> float:
    """Bytes that one decode step must read: `weight_bytes + sequences x context x kv_bytes_per_token`."""
    return weight_bytes + sequences * context * kv_bytes_per_token


def share_of_roofline(read_bytes: float, step_seconds: float, bandwidth: float) -> float:
    """Share of `bandwidth` (bytes/s) that a step of `step_seconds` used; 1 is as fast as memory allows."""
    return read_bytes / bandwidth / step_seconds


def shared_out(sizes: Sequence[int], threads: int) -> list[list[int]]:
    """`sizes`, a list for each thread, with sums as even as the largest-first rule makes them."""
    shares: list[list[int]] = [[] for _ in range(threads)]
    for size in sorted(sizes, reverse=True):
        min(shares, key=sum).append(size)
    return shares


def measured_bandwidth(sizes: Sequence[int], threads: int, rounds: int = _ROUNDS) -> float:
    """Bytes/s of reading pieces of `sizes` bytes with `threads` threads: the best of `rounds`."""
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    shares = [[_Piece(size) for size in share] for share in shared_out(sizes, threads)]

    def read(share: list[_Piece]) -> None:
        for piece in share:
            libc.memcmp(piece.address, piece.address + piece.half, piece.half)

    best = 0.0
    for _ in range(rounds):
        workers = [threading.Thread(target=read, args=(share,)) for share in shares]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, sum(sizes) / (time.perf_counter() - started))
    return best


class _Piece:
    """Memory that is really there: untouched pages would all be the one zero page of the kernel."""

    def __init__(self, size: int) -> None:
        self.half = size // 2
        self._memory = (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))
        self.address = ctypes.addressof(self._memory)
        ctypes.memset(self.address, 0, size)
