"""The dashboard for Grafana and the alert rules for Prometheus speak of metrics that a running gateway has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.gateway.watching.metrics.engine import Adapters, adapter_family
from conch.gateway.watching.metrics.machine import Gpu, gpu_families
from tests.conftest import ROOT
from tests.contract.conftest import Gateway

FOLDER = ROOT / "serving" / "monitoring"
ALERTS = FOLDER / "alerts.yml"
GRAFANA = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:vllm|conch):\w+|\b(?:process|python|node|nv)_\w+")
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")


def panels() -> Iterator[tuple[str, str]]:
    for panel in GRAFANA["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


@pytest.fixture(scope="module")
def there(gateway: Gateway) -> set[str]:
    """Names of the samples of a running gateway, and of what it tells with adapters and on a machine with GPUs."""
    gateway.http.get("/v1/models")
    text = gateway.http.get("/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    gpus = gpu_families([Gpu(0, "GPU-a", "a GPU", 0.5, 10, 80)])
    adapters = adapter_family([Adapters("model", 1, [])])
    return names | {sample.name for family in (*gpus, *adapters) for sample in family.samples}


@pytest.mark.parametrize(("title", "expression"), list(panels()))
def test_a_panel_shows_what_there_is(there: set[str], title: str, expression: str) -> None:
    assert NAME.findall(expression), title
    assert not set(NAME.findall(expression)) - there


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule["alert"])
def test_a_rule_watches_what_there_is_and_says_what_to_do(there: set[str], rule: dict[str, Any]) -> None:
    assert NAME.findall(rule["expr"])
    assert not set(NAME.findall(rule["expr"])) - there
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description"}


def test_panels_have_their_own_ids_and_places() -> None:
    shown = GRAFANA["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    places = [tuple(panel["gridPos"].values()) for panel in shown]
    assert len(set(places)) == len(places)
    assert {source["uid"] for panel in shown if (source := panel.get("datasource"))} == {"${datasource}"}


@promtool
def test_prometheus_takes_the_rules_and_the_panels_expressions(tmp_path: Path) -> None:
    shown = [
        {"record": f"panel_{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$model", ".*")}
        for number, (_, expression) in enumerate(panels())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": shown}]}))
    subprocess.run(["promtool", "check", "rules", str(ALERTS), str(path)], check=True, capture_output=True)


@promtool
@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("ConchShedding", {'conch:shed_requests_total{model_name="m",reason="queue_full"}': "0+1x60"}),
        ("ConchServerDown", {'conch:upstream_up{model_name="m",server="s"}': "0x60"}),
        ("ConchKVCacheFull", {'vllm:kv_cache_usage_perc{model_name="m",engine="0"}': "0.99x60"}),
        ("ConchQueueStands", {'conch:queue_requests{model_name="m"}': "3x60"}),
        (
            "ConchFailing",
            {
                'conch:http_responses_total{status="503",instance="i"}': "0+1x60",
                'conch:http_responses_total{status="200",instance="i"}': "0+9x60",
            },
        ),
        (
            "ConchSlowFirstToken",
            {
                'vllm:time_to_first_token_seconds_bucket{model_name="m",le="1.0"}': "0x60",
                'vllm:time_to_first_token_seconds_bucket{model_name="m",le="5.0"}': "0+9x60",
                'vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"}': "0+9x60",
            },
        ),
        ("ConchNoEngine", {"up": "0x60"}),
    ],
)
def test_an_alert_fires_when_it_should_and_not_on_a_quiet_gateway(
    tmp_path: Path, alert: str, series: dict[str, str]
) -> None:
    assert _fires(tmp_path, alert, series)
    quiet = {
        "vllm:num_requests_running": "0x60",
        'conch:shed_requests_total{model_name="m",reason="queue_full"}': "5x60",
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"}': "0.4x60",
        'conch:upstream_up{model_name="m",server="s"}': "1x60",
        'conch:queue_requests{model_name="m"}': "3 0 3 0x57",
        'conch:http_responses_total{status="200",instance="i"}': "0+9x60",
    }
    assert not _fires(tmp_path, alert, quiet)


def _fires(folder: Path, alert: str, series: dict[str, str]) -> bool:
    """Whether it fires within half an hour, by promtool's own test that nothing does."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": "30m", "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test))
    run = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0 or f"alertname: {alert}" in run.stdout + run.stderr, run.stdout + run.stderr
    return run.returncode != 0
