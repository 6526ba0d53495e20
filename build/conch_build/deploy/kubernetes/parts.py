"""What the documents share: names, labels, security, probes, volumes. Knows nothing of values' defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.deploy.kubernetes.chart import Value
from conch_build.plan import Plan

HTTP, GRPC, METRICS, GATEWAY = 8000, 8001, 8002, 8080
STATE = "/var/lib/conch"
PLAN = "/etc/conch/conch.yaml"
WORKER = "triton-worker"
"""Component of the pods behind the first of an engine that spans several."""
LEAVING_SECONDS = 5
"""Until every proxy knows that a pod is ending and sends it nothing new."""
_READY = ["python3", "/opt/conch/ready.py", f"http://127.0.0.1:{HTTP}"]
USER = 1000


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
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
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


def drain_seconds(plan: Plan) -> int:
    return math.ceil(plan.serving.gateway.limits.drain_timeout)


def after(seconds: int) -> dict[str, Any]:
    """The signal to end comes so much later."""
    return {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}


def lively(hours: float) -> dict[str, Any]:
    """By use: a token is generated. A busy engine may take its time, a dead one is replaced after three minutes."""
    return {
        "startupProbe": _generates(10, round(hours * 360)),
        "readinessProbe": _generates(10, 2),
        "livenessProbe": _generates(30, 6),
    }


def _generates(period: int, failures: int) -> dict[str, Any]:
    return {
        "exec": {"command": _READY},
        "periodSeconds": period,
        "timeoutSeconds": 30,
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


def replicas(component: str, *, scaled: bool) -> Value:
    """`scaled`: by an autoscaler, if that is switched on; the number is its own then."""
    return Value(f"{component}.replicas", unless=("autoscaling.enabled", "keda.enabled") if scaled else ())


def model_volume() -> Value:
    return Value("models.volume", name="models")


def scratch(shared_memory: str) -> list[dict[str, Any]]:
    return [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
    ]


def scratch_mounts() -> list[dict[str, Any]]:
    return [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shared-memory", "mountPath": "/dev/shm"}]
