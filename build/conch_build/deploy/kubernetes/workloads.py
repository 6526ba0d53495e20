"""The pods. On GPUs Triton's and the gateway's scale apart; a CPU's Triton shares its pod with a gateway.

The Triton for CPUs is older than the fixes that one needs which others can reach: it stays on loopback.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.deploy.kubernetes.chart import Document, Value
from conch_build.deploy.kubernetes.parts import (
    CONTAINER_SECURITY,
    GATEWAY,
    GRPC,
    HTTP,
    METRICS,
    PLAN,
    STATE,
    chosen,
    metadata,
    model_mounts,
    model_volume,
    name_of,
    pod,
    probe,
    web_probe,
)
from conch_build.launch import ServerFlags, arrangement_of, start_command
from conch_build.plan import Plan

_LEAVING_SECONDS = 5
"""Until every proxy knows that a pod is ending and sends it nothing new."""
_READY = ["python3", "/opt/conch/ready.py", f"http://127.0.0.1:{HTTP}"]


def workloads(plan: Plan, built: Built, shared: bool) -> Iterator[Document]:
    """`shared`: the gateways have a database in common, so that there may be several."""
    if plan.engine.backend == "openvino":
        yield Document("gateway.yaml", _together(plan, built, shared))
    else:
        yield Document("triton.yaml", _triton(plan, built))
        yield Document("gateway.yaml", _gateways(plan, built, shared))


def _together(plan: Plan, built: Built, shared: bool) -> dict[str, Any]:
    containers = [_gateway(plan, built, "127.0.0.1", every_address=False), _triton_on_cpu(plan, built)]
    return _deployment(plan, "gateway", shared, containers, _volumes(plan, "256Mi"), "triton")


def _gateways(plan: Plan, built: Built, shared: bool) -> dict[str, Any]:
    containers = [_gateway(plan, built, f"{name_of(plan)}-triton", every_address=True)]
    return _deployment(plan, "gateway", shared, containers, _volumes(plan, None), "gateway")


def _deployment(
    plan: Plan, component: str, shared: bool, containers: list[dict[str, Any]], volumes: list[Any], placed: str
) -> dict[str, Any]:
    """`placed`: whose values say where the pods may run."""
    limits = plan.serving.gateway.limits
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(plan, component),
        "spec": {
            "replicas": Value("gateway.replicas"),
            "selector": chosen(plan, component),
            # The one that owns the volume has to let go of it before the next can have it.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
            if shared
            else {"type": "Recreate"},
            "template": pod(
                plan,
                component,
                {
                    "terminationGracePeriodSeconds": math.ceil(limits.drain_timeout) + _LEAVING_SECONDS + 10,
                    "containers": containers,
                    "volumes": [model_volume(), *volumes],
                    "nodeSelector": Value(f"{placed}.nodeSelector"),
                    "tolerations": Value(f"{placed}.tolerations"),
                },
            ),
        },
    }


def _triton(plan: Plan, built: Built) -> dict[str, Any]:
    """A set whose pods have names that the gateway finds by one look-up."""
    arrangement = arrangement_of(plan)
    command = start_command(
        ServerFlags(str(built.repository), "$(ADMIN_KEY)", host="0.0.0.0", exit_seconds=30), arrangement
    )
    secret = {"secretKeyRef": {"name": Value("triton.adminSecret"), "key": "key"}}
    environment = [{"name": name, "value": value} for name, value in command.env.items()]
    container = {
        "name": "triton",
        "image": Value("images.triton"),
        "imagePullPolicy": Value("images.pullPolicy"),
        "command": list(command.argv),
        "env": [*environment, {"name": "ADMIN_KEY", "valueFrom": secret}, {"name": "HOME", "value": "/tmp"}],
        "ports": [
            {"name": "http", "containerPort": HTTP},
            {"name": "grpc", "containerPort": GRPC},
            {"name": "metrics", "containerPort": METRICS},
        ],
        **_lively(hours=1),
        "resources": Value("triton.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*model_mounts(plan, built), *_scratch_mounts()],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(plan, "triton"),
        "spec": {
            "replicas": Value("triton.replicas"),
            "serviceName": f"{name_of(plan)}-triton",
            "podManagementPolicy": "Parallel",
            "selector": chosen(plan, "triton"),
            "template": pod(
                plan,
                "triton",
                {
                    "terminationGracePeriodSeconds": 60,
                    "containers": [container],
                    "volumes": [model_volume(), *_scratch("2Gi")],
                    "nodeSelector": Value("triton.nodeSelector"),
                    "tolerations": Value("triton.tolerations"),
                },
            ),
        },
    }


def _triton_on_cpu(plan: Plan, built: Built) -> dict[str, Any]:
    return {
        "name": "triton",
        "image": Value("images.triton"),
        "imagePullPolicy": Value("images.pullPolicy"),
        "command": ["python3", "-m", "conch.triton", str(built.repository)],
        "env": [{"name": "CONCH_HOME", "value": "/tmp/conch"}, {"name": "HOME", "value": "/tmp"}],
        **_lively(hours=0.25),
        # The gateway beside it ends its answers first.
        "lifecycle": _after(math.ceil(plan.serving.gateway.limits.drain_timeout) + _LEAVING_SECONDS),
        "resources": Value("triton.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*model_mounts(plan, built), *_scratch_mounts()],
    }


def _lively(hours: float) -> dict[str, Any]:
    """By use: a token is generated. A busy engine may take its time, a dead one is replaced after three minutes."""
    return {
        "startupProbe": probe(_READY, 10, round(hours * 360)),
        "readinessProbe": probe(_READY, 10, 2),
        "livenessProbe": probe(_READY, 30, 6),
    }


def _gateway(plan: Plan, built: Built, triton: str, *, every_address: bool) -> dict[str, Any]:
    return {
        "name": "gateway",
        "image": Value("images.gateway"),
        "imagePullPolicy": Value("images.pullPolicy"),
        "command": [
            *("python3", "-m", "conch.gateway", str(built.engine)),
            *("--repository", str(built.repository), "--plan", PLAN),
            *("--grpc-url", f"{triton}:{GRPC}", "--metrics-url", f"http://{triton}:{METRICS}/metrics"),
            *("--host", "0.0.0.0", "--port", str(GATEWAY), "--require-key"),
            *(["--every-address"] if every_address else []),
        ],
        "env": [{"name": "CONCH_HOME", "value": STATE}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": Value("gateway.envFrom"),
        "ports": [{"name": "http", "containerPort": GATEWAY}],
        "startupProbe": web_probe("/health/live", 2, 60),
        "readinessProbe": web_probe("/health/ready", 5, 2),
        "livenessProbe": web_probe("/health/live", 10, 3),
        "lifecycle": _after(_LEAVING_SECONDS),
        "resources": Value("gateway.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            *model_mounts(plan, built),
            {"name": "plan", "mountPath": PLAN.rpartition("/")[0], "readOnly": True},
            {"name": "state", "mountPath": STATE},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }


def _after(seconds: int) -> dict[str, Any]:
    return {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}


def _volumes(plan: Plan, shared_memory: str | None) -> list[dict[str, Any]]:
    name = name_of(plan)
    return [
        {"name": "plan", "configMap": {"name": f"{name}-plan"}},
        {"name": "state", "persistentVolumeClaim": {"claimName": f"{name}-state"}},
        *(_scratch(shared_memory) if shared_memory else [{"name": "scratch", "emptyDir": {}}]),
    ]


def _scratch(shared_memory: str) -> list[dict[str, Any]]:
    return [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
    ]


def _scratch_mounts() -> list[dict[str, Any]]:
    return [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shared-memory", "mountPath": "/dev/shm"}]
