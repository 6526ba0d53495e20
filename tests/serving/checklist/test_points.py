"""The points that no server is needed for: what is ticked, what is not, and what is left to a person."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conch.checklist.certificate import days_left
from conch.checklist.deployment import deployment
from conch.checklist.operation import held
from conch.checklist.points import Point
from conch.checklist.watching import SHIPPED, watching
from conch.cli import main
from conch.gateway.database import Database
from conch.gateway.keys import grants as keys
from conch.gateway.transport.tls import context_of
from conch_build.errors import SetupError
from conch_build.plan import Plan, Slo
from tests.gateway.transport.test_tls import self_signed


def plan_of(**gateway: Any) -> Plan:
    return Plan.model_validate({"name": "m", "model": {"checkpoint": "sample"}, "serving": {"gateway": gateway}})


def by_id(points: Iterable[Point]) -> dict[str, Point]:
    return {point.id: point for point in points}


def walked(*arguments: str) -> tuple[int, dict[str, Any]]:
    run = CliRunner().invoke(main, ["checklist", *arguments, "--json"])
    return run.exit_code, json.loads(run.stdout)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    plan = tmp_path / "conch.yaml"
    plan.write_text("name: never-built\nmodel: {checkpoint: sample}\nengine: {max_seq_len: 97}\n")
    return plan


def test_what_is_not_built_or_not_set_is_named_with_what_to_do(written: Path) -> None:
    code, told = walked(str(written), "--phase", "pre-deployment")
    states = {point["id"]: point["state"] for point in told["points"]}
    assert code == 0 and not told["ok"]
    assert {name for name, state in states.items() if state == "failed"} == {
        "build.there",
        "quality.limits",
        "slo.set",
        "cost.set",
    }
    assert states["slo.measured"] == "open" and states["model.license"] == "person"
    assert f"conch build {written}" in next(p["fix"] for p in told["points"] if p["id"] == "build.there")


def test_strict_gives_a_build_script_something_to_stop_at(written: Path) -> None:
    assert walked(str(written), "--phase", "pre-deployment", "--strict")[0] == 2


def test_a_plan_that_cannot_work_is_told_with_its_rules_and_the_walk_goes_on(tmp_path: Path) -> None:
    plan = tmp_path / "conch.yaml"
    plan.write_text("name: m\nmodel: {checkpoint: sample}\nengine: {kv_cache: {size: 1MiB}}\n")
    _, told = walked(str(plan), "--phase", "pre-deployment")
    first = told["points"][0]
    assert first["id"] == "plan.works" and first["state"] == "failed" and "." in first["what"]
    assert "model.license" in {point["id"] for point in told["points"]}


@pytest.mark.parametrize(("itl", "state"), [(20.0, "done"), (80.0, "failed"), (None, "failed")])
def test_a_saved_load_is_held_against_the_slo(tmp_path: Path, itl: float | None, state: str) -> None:
    plan, run = tmp_path / "conch.yaml", tmp_path / "run.json"
    plan.write_text("name: m\nmodel: {checkpoint: sample}\nslo: {ttft_p95: 100ms, itl_p95: 50ms}\n")
    figures = {"load": "8 at once", "ttft_p95_ms": 90.0, "itl_p95_ms": itl, "errors": {}}
    run.write_text(json.dumps({"conch_bench": 1, "rounds": [{"round": 0, "figures": figures}]}))
    _, told = walked(str(plan), "--phase", "pre-deployment", "--bench", str(run))
    assert next(point["state"] for point in told["points"] if point["id"] == "slo.measured") == state


def test_a_gateway_that_others_reach_needs_keys_and_tls(tmp_path: Path) -> None:
    points = by_id(deployment(plan_of(host="0.0.0.0"), tmp_path, running=True))
    assert points["keys.guarded"].state == "failed" and "anybody" in points["keys.guarded"].what
    assert points["tls"].state == "failed" and "in the clear" in points["tls"].what
    local = by_id(deployment(plan_of(), tmp_path, running=True))
    assert local["keys.guarded"].state == "done" and local["tls"].state == "person"
    assert not list(tmp_path.iterdir()), "looking made a database"


def test_keys_that_end_soon_or_have_no_limits_are_named(tmp_path: Path) -> None:
    database = Database.at(None, tmp_path)
    database.run_now(lambda connection: keys.create(connection, keys.Grant("boundless")))
    points = by_id(deployment(plan_of(host="0.0.0.0"), tmp_path, running=True))
    assert points["keys.guarded"].state == points["keys.expiry"].state == "done"
    assert points["keys.limits"].state == "person" and "boundless" in points["keys.limits"].what
    soon = keys.Grant("short", parallel=1, expires_at=time.time() + 3600)
    database.run_now(lambda connection: keys.create(connection, soon))
    database.close_now()
    expiry = by_id(deployment(plan_of(), tmp_path, running=True))["keys.expiry"]
    assert expiry.state == "failed" and "short" in expiry.what


def test_a_certificate_is_held_to_its_last_day(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    context = context_of(tls)
    assert context is not None and tls.certificate is not None
    assert 1.5 < days_left(context, Path(tls.certificate)) <= 2
    point = by_id(deployment(plan_of(host="0.0.0.0", tls=tls.model_dump()), tmp_path, running=True))["tls"]
    assert point.state == "failed" and "2 more days" in point.what


def test_a_certificate_that_has_ended_is_refused(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    old = tmp_path / "old.pem"
    request = ["openssl", "req", "-new", "-key", str(tls.key), "-subj", "/CN=old", "-out", str(tmp_path / "old.csr")]
    subprocess.run(request, check=True, capture_output=True)
    sign = ["openssl", "x509", "-req", "-in", str(tmp_path / "old.csr"), "-signkey", str(tls.key), "-days", "-1"]
    subprocess.run([*sign, "-out", str(old)], check=True, capture_output=True)
    context = context_of(tls.model_copy(update={"certificate": str(old)}))
    assert context is not None
    with pytest.raises(SetupError, match="expired"):
        days_left(context, old)


def test_rules_that_stay_silent_while_the_slo_is_broken_are_found(tmp_path: Path) -> None:
    slow = by_id(watching(Slo.model_validate({"ttft_p95": "100ms"}), None, None, ()))
    assert slow["watch.slo"].state == "failed" and "alerts above 2 s" in slow["watch.slo"].what
    own = tmp_path / "alerts.yml"
    own.write_text((SHIPPED / "alerts.yml").read_text().replace("_bucket[5m]))) > 2\n", "_bucket[5m]))) > 0.1\n"))
    assert by_id(watching(Slo.model_validate({"ttft_p95": "100ms"}), own, None, ()))["watch.slo"].state == "done"


def test_rules_and_panels_of_figures_that_are_not_told_are_found() -> None:
    points = by_id(watching(Slo(), None, None, {"conch:queue_requests"}))
    assert points["watch.alerts"].state == points["watch.dashboard"].state == "failed"
    assert "vllm:kv_cache_usage_perc" in points["watch.alerts"].what


@pytest.mark.parametrize(
    ("within", "limit", "state"),
    [(96, 0.1, "done"), (90, 0.1, "failed"), (90, 0.07, "failed"), (96, 0.07, "open")],
)
def test_a_histogram_ticks_only_what_its_bounds_can_tell(within: int, limit: float, state: str) -> None:
    assert held("slo", {0.05: 10.0, 0.1: float(within), math.inf: 100.0}, limit).state == state


def test_a_few_streams_tell_nothing() -> None:
    assert held("slo", {0.1: 3.0, math.inf: 3.0}, 0.1).state == "open"
