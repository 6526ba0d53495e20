"""Latencies of one request, whatever its chunks held."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.bench.traffic.loads import Generator, Session, Turn
from conch.bench.traffic.measures import Round, Terms, measures
from conch.bench.traffic.openai import CHAT, OpenAITarget
from conch.bench.traffic.record import token_gaps
from tests.bench.traffic.conftest import answered, scripted, text

ONE = Session(0, "m", (Turn("hello", 21),))


async def test_a_gap_before_a_chunk_of_four_tokens_is_four_times_a_tokens_latency() -> None:
    """The role at 0 ms, a token at 200 ms, then five chunks of four tokens, 40 ms apart."""
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 21}}
    script = [
        (0, text("")),
        (200, text("a")),
        *((200 + 40 * n, text("four")) for n in range(1, 6)),
        (400, usage),
        (400, "[DONE]"),
    ]
    async with scripted(script) as url:
        target = OpenAITarget(url, CHAT)
        (record,) = await Generator(target).closed(iter([ONE]), 1)
    row = measures([Round([record], 1.0)], Terms())
    assert record.tokens == 21
    assert row["ttft_p50_ms"] == pytest.approx(200, abs=15)
    assert row["itl_p50_ms"] == pytest.approx(10, abs=2)
    assert row["tpot_p50_ms"] == pytest.approx(10, abs=1)
    assert row["gap_p50_ms"] == pytest.approx(40, abs=8)


async def test_chunks_known_by_their_tokens_are_shared_out_by_them() -> None:
    assert token_gaps([0.2, 0.4, 0.5], [1, 4, 1], 6) == pytest.approx([0.05] * 4 + [0.1])


@given(
    st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 9)), min_size=2, max_size=30),
    st.integers(1, 300),
)
def test_tokens_latencies_add_up_to_the_time_between_first_and_last(chunks: list[tuple[float, int]], more: int) -> None:
    arrivals = [math.fsum(gap for gap, _ in chunks[: n + 1]) for n in range(len(chunks))]
    pieces = [piece for _, piece in chunks]
    gaps = token_gaps(arrivals, pieces, pieces[0] + more)
    assert len(gaps) == more
    assert math.fsum(gaps) == pytest.approx(arrivals[-1] - arrivals[0])
    assert min(gaps) >= -1e-9


def test_one_token_has_no_latency_between_tokens() -> None:
    assert token_gaps([0.2], [1], 1) == []
    assert answered(0, 0.2).tpot is None


def test_what_is_read_at_once_is_one_arrival_of_several_pieces() -> None:
    record = answered(0, 0.2, 0.3, 0.3, 0.3)
    assert (record.arrivals, record.pieces) == ([0.2, 0.3], [1, 3])


def test_latencies_count_from_when_a_request_was_due() -> None:
    record = answered(5.0, 5.5, 6.0, due=1.0)
    assert (record.ttft, record.e2e, record.tpot) == (4.5, 5.0, 0.5)
