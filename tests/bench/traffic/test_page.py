"""The report: one file that loads nothing, and that a browser draws."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conch.bench.traffic.charts import cumulated, line_chart
from conch.bench.traffic.measures import Round, Terms
from conch.bench.traffic.page import page
from conch.bench.traffic.slo import Limits
from conch.bench.traffic.trial import Load, row_of
from tests.bench.traffic.conftest import answered

CHARTS = ["Throughput", "Requests", "TTFT by load", "ITL by load", "E2E by load"]
CHARTS += ["TTFT of all", "ITL of all", "E2E of all", "Requests that run"]


@pytest.fixture
def report() -> str:
    loads = [Load(concurrency=level) for level in (1, 8, 32)]
    rounds = {
        load.label: [Round([answered(0.1 * n, 0.2 + 0.1 * n, 0.3 + 0.1 * n) for n in range(load.count)], 4.0)]
        for load in loads
    }
    terms = Terms(Limits({"ttft": 0.1}))
    return page("a <model>", {"rounds": 1}, [row_of(load, rounds[load.label], terms) for load in loads], rounds)


def test_it_loads_nothing_from_anywhere(report: str) -> None:
    assert not re.findall(r"<(?:script|link|img|iframe)|@import|url\(", report)
    assert set(re.findall(r"https?://[^\"' ]+", report)) == {"http://www.w3.org/2000/svg"}


def test_names_are_escaped(report: str) -> None:
    assert "<h1>a &lt;model&gt;</h1>" in report


def test_every_chart_is_well_formed_and_within_its_frame(report: str) -> None:
    charts = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", report, re.S)]
    assert [chart.get("aria-label") for chart in charts] == CHARTS
    for chart in charts:
        _, _, width, height = map(float, str(chart.get("viewBox")).split())
        for line in chart.iter("{http://www.w3.org/2000/svg}polyline"):
            points = [tuple(map(float, point.split(","))) for point in str(line.get("points")).split()]
            assert points and all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_a_chart_of_nothing_is_left_out() -> None:
    assert line_chart("Empty", "x", "y", {"a": []}) == ""
    assert "<svg" in line_chart("One point", "x", "y", {"a": [(1.0, 1.0)]}, log_x=True)


def test_cumulated_shares_end_at_all_of_them() -> None:
    points = cumulated([3.0, 1.0, 2.0, 4.0])
    assert points == [(1.0, 25.0), (2.0, 50.0), (3.0, 75.0), (4.0, 100.0)]
    assert cumulated(list(range(10_000)))[-1] == (9999, 100.0)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_draws_it(report: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(report)
    common = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dom = subprocess.run(
        [*common, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert dom.count("<svg") == len(CHARTS) and dom.count("<tr>") == 4
    shot = [*common, "--window-size=1200,1800", f"--screenshot={picture}", file.as_uri()]
    subprocess.run(shot, capture_output=True, timeout=60, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 30_000
