"""From rounds to rows: rates, factors, intervals, cost, and rungs that could not run."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from conch.bench.figures import Timing
from conch.ladder.page import ladder_page, ladder_text
from conch.ladder.rows import Climbed, Round
from conch.ladder.rows import rows_of as rows_of_ladder
from conch.ladder.rungs import Rung
from conch_build.cost import Price

ROUNDS = {"a": (2.0, 2.5, 2.2), "b": (1.0, 1.1, 1.2), "c": (0.4, 0.5, 0.45)}
"""Seconds of each round, of 40 tokens."""
PRICE = Price(0.36)


def climbed(name: str, over: str | None, skipped: str | None = None) -> Climbed:
    def one(seconds: float) -> Round:
        arrivals = tuple(seconds * (n + 1) / 10 for n in range(10))
        return Round(seconds, [Timing(arrivals, 10, 5)] * 4)

    rounds = [] if skipped else [one(seconds) for seconds in ROUNDS[name]]
    return Climbed(Rung(name, f"<{name}>", over), rounds, 1 << 30, skipped=skipped)


def rows_of(chosen: list[Climbed], price: Price | None) -> list[dict[str, Any]]:
    ladder = [Rung("a", "a", None), Rung("b", "b", "a"), Rung("c", "c", "b"), Rung("plain", "plain", None)]
    return rows_of_ladder(chosen, ladder, price)


LADDER = [climbed("a", None), climbed("b", "a"), climbed("c", "b")]


def test_rates_tails_and_cost_are_of_all_rounds() -> None:
    row = rows_of(LADDER, PRICE)[0]
    assert row["tokens_per_second"] == pytest.approx(np.mean([40 / seconds for seconds in ROUNDS["a"]]))
    latencies = [1e3 * seconds for seconds in ROUNDS["a"] for _ in range(4)]
    assert row["e2e_p99_ms"] == pytest.approx(np.percentile(latencies, 99))
    gaps = [1e2 * seconds for seconds in ROUNDS["a"] for _ in range(4 * 9)]
    assert row["gap_p99_ms"] == pytest.approx(np.percentile(gaps, 99))
    assert row["usd_per_million_generated"] == pytest.approx(0.36 / 3600 * sum(ROUNDS["a"]) / 120 * 1e6)
    assert row["requests"] == 4 and row["rounds"] == 3


def test_factors_and_their_intervals_are_scipys_of_paired_rounds() -> None:
    for row, name, below in zip(rows_of(LADDER, None)[1:], "bc", "ab", strict=True):
        for key, other in (("factor", below), ("factor_over_baseline", "a")):
            logs = np.log(ROUNDS[other]) - np.log(ROUNDS[name])
            low, high = scipy.stats.t.interval(0.95, len(logs) - 1, np.mean(logs), scipy.stats.sem(logs))
            assert row[key] == pytest.approx(scipy.stats.gmean(np.exp(logs)))
            assert row[f"{key}_interval"] == pytest.approx([math.exp(low), math.exp(high)])
        assert row["usd_per_million_generated"] is None


def test_factors_multiply_up_to_that_over_the_first() -> None:
    rows = rows_of(LADDER, None)
    assert rows[2]["factor_over_baseline"] == pytest.approx(rows[1]["factor"] * rows[2]["factor"])
    assert rows[0]["factor"] is None and rows[0]["factor_over_baseline"] is None


def test_a_rung_that_cannot_run_is_told_with_its_reason_and_stepped_over() -> None:
    rows = rows_of([climbed("a", None), climbed("b", "a", "no <draft>"), climbed("c", "b")], PRICE)
    assert rows[1]["skipped"] == "no <draft>" and rows[1]["tokens_per_second"] is None
    assert rows[2]["over"] == "a" and rows[2]["factor"] == rows[2]["factor_over_baseline"]
    assert rows_of([climbed("a", None), climbed("c", "b")], PRICE)[1]["over"] == "a", "it was not chosen"
    assert "b cannot run here: no <draft>" in ladder_text(rows)
    assert "&lt;b&gt; cannot run here: no &lt;draft&gt;" in ladder_page("x", {}, rows)


def test_answers_that_are_cut_have_no_end_to_tell() -> None:
    plain = Climbed(Rung("plain", "plain", None), climbed("a", None).rounds, 1 << 30)
    row = rows_of([plain], None)[0]
    assert row["e2e_p99_ms"] is None and row["gap_p99_ms"] > 0 and "plain  " in ladder_text([row])


def test_nothing_that_ran_is_no_fault() -> None:
    assert ladder_text(rows_of([climbed("a", None, "no torch")], PRICE)).endswith("a cannot run here: no torch")


def test_the_page_loads_nothing_and_its_bars_lie_within_their_frames() -> None:
    page = ladder_page("a <model>", {"price": None}, rows_of(LADDER, PRICE))
    assert not re.findall(r"<(?:script|link|img|iframe)|@import|url\(", page) and "a &lt;model&gt;" in page
    charts = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]
    assert [chart.get("aria-label") for chart in charts][::4] == ["Throughput", "Cost of generated tokens"]
    for chart in charts:
        _, _, width, height = map(float, str(chart.get("viewBox")).split())
        bars = [bar.attrib for bar in chart.iter("{http://www.w3.org/2000/svg}rect")]
        assert len(bars) == 3 and all(float(bar["x"]) + float(bar["width"]) <= width for bar in bars)
        assert all(float(bar["y"]) + float(bar["height"]) <= height for bar in bars)
    longest = [float(bar.attrib["width"]) for bar in charts[0].iter("{http://www.w3.org/2000/svg}rect")]
    assert longest == sorted(longest) and longest[0] > 0


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    file, picture = tmp_path / "ladder.html", tmp_path / "ladder.png"
    file.write_text(ladder_page("a model", {}, rows_of(LADDER, PRICE)), encoding="utf-8")
    common = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dom = subprocess.run(
        [*common, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert dom.count("<svg") == 5 and dom.count("<tr>") == 4
    shot = [*common, "--window-size=1200,1200", f"--screenshot={picture}", file.as_uri()]
    subprocess.run(shot, capture_output=True, timeout=60, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000
