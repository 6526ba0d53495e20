"""`conch ladder`: a few rungs of the sample, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from conch.cli import main
from conch_build.pipeline import BuildResult
from tests.conftest import SAMPLE_PLAN


def test_a_rung_that_there_is_not_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "conch.yaml").write_text(SAMPLE_PLAN)
    run = CliRunner().invoke(main, ["ladder", str(tmp_path / "conch.yaml"), "--rungs", "fp8", "--json"])
    assert run.exit_code == 2 and "no rung 'fp8'" in json.loads(run.stdout)["what"]


@pytest.mark.slow
def test_rungs_are_measured_in_turns_on_the_same_requests_and_one_that_cannot_run_is_told(
    sample_build: BuildResult, tmp_path: Path
) -> None:
    plan, html = tmp_path / "conch.yaml", tmp_path / "ladder.html"
    draft = "  speculation: {method: draft, checkpoint: ./not-there}\n"
    plan.write_text(f"{SAMPLE_PLAN}{draft}quality: {{samples: 1, max_length: 16}}\n")
    command = ["ladder", str(plan), "--rungs", "kv-cache,speculation,lora", "--minutes", "0", "--requests", "4"]
    run = CliRunner().invoke(main, [*command, "--hourly-usd", "0.1", "--html", str(html), "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    rows = {row["rung"]: row for row in told["rows"]}
    assert list(rows) == ["kv-cache", "speculation", "lora"] and told["made_up_adapters"]
    assert "not-there" in rows["speculation"]["skipped"]
    for name in ("kv-cache", "lora"):
        row = rows[name]
        assert row["skipped"] is None and row["rounds"] == 2 and row["requests"] == 4, row
        assert row["tokens_per_second"] > 0 and row["usd_per_million_generated"] > 0
        assert 0 < row["gap_p99_ms"] <= row["e2e_p99_ms"] and row["peak_bytes"] > 200 << 20
    assert rows["lora"]["over"] == "kv-cache", "what it stands on was not measured"
    assert html.read_text().count("<svg") == 5
