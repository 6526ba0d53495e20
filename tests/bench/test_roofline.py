"""The bytes of a decode step over the bandwidth of memory."""

from __future__ import annotations

import pytest

from conch.bench.roofline import measured_bandwidth, share_of_roofline, shared_out, step_bytes


def test_a_step_reads_the_weights_once_and_each_sequences_cache() -> None:
    assert step_bytes(1000, 2, sequences=1, context=10) == 1020
    assert step_bytes(1000, 2, sequences=8, context=10) == 1160


def test_a_step_as_fast_as_memory_is_the_whole_roofline() -> None:
    assert share_of_roofline(2e9, step_seconds=0.1, bandwidth=20e9) == 1
    assert share_of_roofline(2e9, step_seconds=0.4, bandwidth=20e9) == pytest.approx(0.25)


def test_pieces_are_shared_out_evenly() -> None:
    sizes = [50, 1, 9, 20, 20, 10, 10]
    shares = shared_out(sizes, 2)
    assert sorted(size for share in shares for size in share) == sorted(sizes)
    assert sum(shares[0]) == sum(shares[1]) == 60


def test_bandwidth_is_measured_in_bytes_a_second() -> None:
    assert 1e8 < measured_bandwidth([1 << 20] * 64, threads=2, rounds=3) < 1e13
