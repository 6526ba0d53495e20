"""Prometheus and Grafana beside the services of a compose file, as its profile `monitoring`."""

from __future__ import annotations

from typing import Any

import yaml

from conch_build.monitoring import monitoring
from conch_build.plan import Plan
from conch_build.recipe import TextFile

PROFILE, KEY_FILE = "monitoring", "metrics.key"
_PROMETHEUS, _GRAFANA = "prom/prometheus:v3.5.0", "grafana/grafana:12.1.0"
_PROVISIONING = "/etc/grafana/provisioning"
_DASHBOARDS = "/var/lib/grafana/dashboards"
STORES = ("prometheus", "grafana")
"""Volumes of what they have seen."""


def watchers() -> dict[str, Any]:
    """The services by name, on loopback."""
    return {
        "prometheus": {
            "image": _PROMETHEUS,
            **_common("127.0.0.1", 9090),
            "volumes": [
                _file("prometheus.yml", "/etc/prometheus/prometheus.yml"),
                _file("alerts.yml", "/etc/prometheus/alerts.yml"),
                _file(KEY_FILE, f"/etc/prometheus/{KEY_FILE}"),
                {"type": "volume", "source": "prometheus", "target": "/prometheus"},
            ],
        },
        "grafana": {
            "image": _GRAFANA,
            **_common("127.0.0.1", 3000),
            "depends_on": ["prometheus"],
            "volumes": [
                _file("grafana/datasource.yaml", f"{_PROVISIONING}/datasources/conch.yaml"),
                _file("grafana/dashboards.yaml", f"{_PROVISIONING}/dashboards/conch.yaml"),
                _file("grafana/conch.json", f"{_DASHBOARDS}/conch.json"),
                {"type": "volume", "source": "grafana", "target": "/var/lib/grafana"},
            ],
        },
    }


def watchers_files(plan: Plan, folder: str) -> tuple[TextFile, ...]:
    """What those services read."""
    return (
        TextFile("what Prometheus scrapes", f"{folder}/prometheus.yml", prometheus_yml(gateway_at(plan))),
        TextFile("its alerts", f"{folder}/alerts.yml", monitoring("alerts.yml")),
        TextFile("its key, of the scope `metrics`, once there are keys", f"{folder}/{KEY_FILE}", ""),
        TextFile("Grafana's source", f"{folder}/grafana/datasource.yaml", yaml.safe_dump(_SOURCE)),
        TextFile("Grafana's folder", f"{folder}/grafana/dashboards.yaml", yaml.safe_dump(_FOLDER)),
        TextFile("the dashboard", f"{folder}/grafana/conch.json", monitoring("grafana.json")),
    )


def gateway_at(plan: Plan) -> str:
    """Where the other containers find it: a CPU's gateway shares Triton's network."""
    return f"{'triton' if plan.engine.backend == 'openvino' else 'gateway'}:8080"


def prometheus_yml(target: str) -> str:
    scraped = {
        "job_name": "conch",
        "authorization": {"credentials_file": f"/etc/prometheus/{KEY_FILE}"},
        "static_configs": [{"targets": [target]}],
    }
    return yaml.safe_dump(
        {"global": {"scrape_interval": "15s"}, "rule_files": ["alerts.yml"], "scrape_configs": [scraped]},
        sort_keys=False,
    )


_SOURCE = {
    "apiVersion": 1,
    "datasources": [
        {
            "name": "Prometheus",
            "uid": "prometheus",
            "type": "prometheus",
            "access": "proxy",
            "url": "http://prometheus:9090",
            "isDefault": True,
        }
    ],
}
_FOLDER = {
    "apiVersion": 1,
    "providers": [{"name": "conch", "type": "file", "options": {"path": _DASHBOARDS}}],
}


def _common(host: str, port: int) -> dict[str, Any]:
    return {
        "profiles": [PROFILE],
        "restart": "unless-stopped",
        "ports": [{"target": port, "host_ip": host, "published": str(port), "protocol": "tcp"}],
    }


def _file(name: str, target: str) -> dict[str, Any]:
    bind = {"create_host_path": False}
    return {"type": "bind", "source": f"./{name}", "target": target, "read_only": True, "bind": bind}
