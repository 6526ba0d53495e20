"""What the documents share: names, labels, security, probes, volumes. Knows nothing of values' defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.deploy.kubernetes.chart import Value
from conch_build.plan import Plan

HTTP, GRPC, METRICS, GATEWAY = 8000, 8001, 8002, 8080
STATE = "/var/lib/conch"
PLAN = "/etc/conch/conch.yaml"
_USER = 1000


def name_of(plan: Plan) -> str:
    """The plan's name as Kubernetes takes names, 40 characters at most."""
    return re.sub(r"-+", "-", re.sub("[^a-z0-9-]", "-", plan.name.lower())).strip("-")[:40].strip("-") or "conch"


def labels(plan: Plan, component: str) -> dict[str, str]:
    """By which a component's pods are chosen."""
    return {
        "app.kubernetes.io/name": name_of(plan),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "conch",
    }


def metadata(plan: Plan, component: str, suffix: str | None = None) -> dict[str, Any]:
    """`suffix`: of its name; the component's where it is left out."""
    name = f"{name_of(plan)}-{component if suffix is None else suffix}"
    return {"name": name, "labels": {**labels(plan, component), "app.kubernetes.io/managed-by": "conch"}}


def chosen(plan: Plan, component: str) -> dict[str, Any]:
    return {"matchLabels": labels(plan, component)}


def asks_others(plan: Plan) -> bool:
    """Whether the gateway talks to more than its Triton: a database, a collector, other servers."""
    gateway = plan.serving.gateway
    return bool(gateway.database.url or gateway.redis.url or gateway.tracing.endpoint or gateway.models)


POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod(plan: Plan, component: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A pod template that may do nothing but its work."""
    return {
        "metadata": {"labels": labels(plan, component)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            **spec,
        },
    }


def probe(command: list[str], period: int, failures: int, timeout: int = 30) -> dict[str, Any]:
    return {
        "exec": {"command": command},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def web_probe(path: str, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def model_mounts(plan: Plan, built: Built) -> list[dict[str, Any]]:
    """The artifacts at the paths that the repository names; in the volume they lie at the same paths below its root."""
    return [
        {"name": "models", "mountPath": path, "subPath": path.strip("/"), "readOnly": True}
        for path in built.mounts(plan)
    ]


def model_volume() -> Value:
    return Value("models.volume", name="models")
