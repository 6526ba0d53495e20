"""What the machine and the server count themselves, and the share of the roofline."""

from __future__ import annotations

from pathlib import Path

import pytest

from conch.bench.traffic.counters import grown, read_counters
from conch.bench.traffic.decoding import EngineBytes, roofline_share
from conch.bench.traffic.energy import Counter, read_meter, used
from conch.bench.traffic.measures import Round
from tests.bench.traffic.conftest import answered


def package(folder: Path, zone: str, micro: int) -> None:
    (folder / zone).mkdir(exist_ok=True)
    (folder / zone / "energy_uj").write_text(f"{micro}\n")
    (folder / zone / "max_energy_range_uj").write_text("100000000\n")


def test_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    for zone in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        package(tmp_path, zone, 1_000_000)
    before = read_meter(tmp_path)
    package(tmp_path, "intel-rapl:0", 3_000_000)
    package(tmp_path, "intel-rapl:0:0", 9_000_000)
    assert used(before, read_meter(tmp_path)) == pytest.approx(2)


def test_a_counter_that_turned_over_goes_on() -> None:
    assert used({"a": Counter(90, 100)}, {"a": Counter(5, 100)}) == 15


def test_a_machine_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    assert used(read_meter(tmp_path), read_meter(tmp_path)) is None


def test_counters_are_summed_over_labels() -> None:
    text = (
        "# TYPE vllm:prefix_cache_hits counter\n"
        'vllm:prefix_cache_hits_total{model_name="a"} 30.0\nvllm:prefix_cache_hits_total{model_name="b"} 2.0\n'
        'vllm:prefix_cache_queries_total{model_name="a"} 1e2\nother 7\n'
    )
    assert read_counters(text) == {"hit_tokens": 32, "prompt_tokens": 100}
    assert grown({"hit_tokens": 30}, {"hit_tokens": 32, "prompt_tokens": 100}) == {"hit_tokens": 2}


def test_two_sequences_read_the_weights_once_and_both_caches() -> None:
    """Steps of 0.1 s that read 1,000 bytes of weights and 2 x 12 tokens of 10 bytes: 12,400 bytes/s."""
    pair = [answered(0, 1.0, 1.1, 1.2, 1.3), answered(0, 1.0, 1.1, 1.2, 1.3)]
    share = roofline_share([Round(pair, 1.3)], EngineBytes(1000, 10.0), bandwidth=24_800)
    assert share == pytest.approx(0.5)


def test_where_tokens_are_speculated_there_is_no_share() -> None:
    record = answered(0, 1.0, 1.1)
    record.draft_tokens = 4
    assert roofline_share([Round([record], 1.0)], EngineBytes(1000, 10.0), 1e3) is None
