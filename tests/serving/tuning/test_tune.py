"""`conch tune`: what it refuses before it serves anything, and a short search on the sample."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from conch.cli import main
from conch_build.pipeline import BuildResult
from tests.conftest import SAMPLE_PLAN


def tuned(*arguments: str) -> tuple[int, dict[str, Any]]:
    run = CliRunner().invoke(main, ["tune", *arguments, "--json"])
    return run.exit_code, json.loads(run.stdout)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "conch.yaml"
    path.write_text(f"# mine\n{SAMPLE_PLAN}slo: {{ttft_p95: 20s, itl_p95: 5s}}\n")
    return path


def test_a_plan_without_an_slo_is_refused(plan: Path) -> None:
    plan.write_text(SAMPLE_PLAN)
    code, told = tuned(str(plan))
    assert code == 2 and "no SLO" in told["what"]


def test_a_gpu_plan_is_refused_by_name_where_no_gpu_is(plan: Path) -> None:
    plan.write_text(
        "name: m\nmodel: {checkpoint: sample}\ntarget: {gpu: h100}\nengine: {backend: pytorch}\nslo: {ttft_p95: 1s}\n"
    )
    code, told = tuned(str(plan))
    assert code == 4 and "GPU" in told["what"] and told["fix"]


def test_a_plan_that_is_there_is_not_written_over_and_none_is_written_elsewhere(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "conch-tuned.yaml").write_text("mine")
    assert tuned(str(plan))[1]["what"] == "exists already"
    (tmp_path / "there").mkdir()
    assert "another folder" in tuned(str(plan), "-o", str(tmp_path / "there" / "a.yaml"))[1]["what"]


@pytest.mark.slow
def test_the_sample_is_tried_with_other_settings_and_the_evidence_is_kept(
    sample_build: BuildResult, plan: Path, tmp_path: Path
) -> None:
    engines = set(sample_build.engine.path.parent.iterdir())
    load = ["--concurrency", "1,2", "--requests", "2", "--input-tokens", "16", "--output-tokens", "4"]
    code, told = tuned(str(plan), *load, "--trials", "2", "--rounds", "2", "--minutes", "2", "--fresh")
    assert code == 0, told
    assert [trial["outcome"] for trial in told["trials"] if trial["outcome"] != "refused"] == ["kept", "kept"]
    assert json.loads((tmp_path / "conch-tuned.json").read_text()) == told
    assert engines <= set(sample_build.engine.path.parent.iterdir()), "a trial removed what was there before it"
    assert not list(tmp_path.glob(".*.yaml")), "the plan of a trial was left"
    if told["output"]:
        assert (tmp_path / "conch-tuned.yaml").read_text().startswith("# mine")
    else:
        assert not told["settings"] or not told["comparison"]["proven"]


@pytest.mark.slow
def test_a_search_that_is_killed_leaves_no_server_behind(sample_build: BuildResult, plan: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conch.cli", "tune", str(plan), "--concurrency", "1", "--requests", "1000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as search:
        try:
            started: list[psutil.Process] = []
            until = time.monotonic() + 60
            while "tritonserver" not in running(started) and time.monotonic() < until:
                time.sleep(0.2)
                started = psutil.Process(search.pid).children(recursive=True)
        finally:
            search.kill()
    assert started
    until = time.monotonic() + 60
    while (left := running(started)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def running(processes: list[psutil.Process]) -> list[str]:
    """Their names."""
    names = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                names.append(process.name())
    return names
