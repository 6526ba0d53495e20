"""`conch checklist` of the sample: built, served, asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch.cli import main
from tests.conftest import SAMPLE_PLAN
from tests.contract.conftest import Gateway


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "conch.yaml"
    path.write_text(SAMPLE_PLAN)
    return path


def states(*arguments: str) -> dict[str, tuple[str, str]]:
    run = CliRunner().invoke(main, ["checklist", *arguments, "--json"])
    assert run.exit_code == 0, run.output
    return {point["id"]: (point["state"], point["what"]) for point in json.loads(run.stdout)["points"]}


def test_a_build_is_ticked_once_it_is_there(gateway: Gateway, plan: Path) -> None:
    found = states(str(plan), "--phase", "pre-deployment")
    assert found["plan.works"][0] == found["build.there"][0] == found["build.whole"][0] == "done"


def test_a_running_gateway_is_asked_for_its_health_an_answer_and_its_figures(gateway: Gateway, plan: Path) -> None:
    found = states(str(plan), "--phase", "operation", "--url", gateway.url)
    for name in ("gateway.live", "gateway.ready", "gateway.answers", "metrics.told", "watch.alerts", "watch.dashboard"):
        assert found[name][0] == "done", found[name]
    assert found["gateway.answers"][1].startswith("smollm2 gave ")


def test_a_model_that_the_gateway_does_not_serve_is_told(gateway: Gateway, plan: Path) -> None:
    plan.write_text(SAMPLE_PLAN.replace("name: smollm2", "name: other"))
    state, what = states(str(plan), "--phase", "operation", "--url", gateway.url)["gateway.answers"]
    assert state == "failed" and "other" in what


def test_no_server_is_one_point_and_no_traceback(plan: Path) -> None:
    found = states(str(plan), "--phase", "operation", "--url", "http://127.0.0.1:9")
    assert found["gateway.live"][0] == "failed" and "gateway.ready" not in found
