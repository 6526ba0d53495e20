"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch_build.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("1GiB", 1 << 30), ("1.5 GiB", 3 << 29), ("10MB", 10_000_000), ("0B", 0), ("2kib", 2048)],
)
def test_bytes_are_read_with_their_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("2 min", 120), ("1h", 3600), ("5us", 5e-6)])
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [5, "5", "GiB", "-1GiB", "1 potato", "1e3 MB", "", None, True])
def test_a_size_without_a_known_unit_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_bytes(value)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_formatting_a_size_loses_less_than_a_percent(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "12.3 ms"), (2.5, "2.5 s"), (75, "1m 15s"), (3720, "1h 2m")])
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
