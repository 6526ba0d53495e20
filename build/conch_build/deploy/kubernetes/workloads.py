"""The gateway's pods. On GPUs Triton's scale apart, see engines.py; a CPU's Triton shares its pod with a gateway.

The Triton for CPUs is older than the fixes that one needs which others can reach: it stays on loopback.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.deploy.kubernetes.chart import Document, Value
from conch_build.deploy.kubernetes.engines import engines
from conch_build.deploy.kubernetes.parts import (
    CONTAINER_SECURITY,
    GATEWAY,
    GRPC,
    LEAVING_SECONDS,
    METRICS,
    PLAN,
    STATE,
    after,
    chosen,
    drain_seconds,
    lively,
    metadata,
    model_mounts,
    model_volume,
    name_of,
    pod,
    replicas,
    scratch,
    scratch_mounts,
    web_probe,
)
from conch_build.plan import Plan


def workloads(plan: Plan, built: Built, shared: bool) -> Iterator[Document]:
    """`shared`: the gateways have a database in common, so that there may be several."""
    if plan.engine.backend == "openvino":
        yield Document("gateway.yaml", _together(plan, built, shared))
    else:
        yield from engines(plan, built)
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
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(plan, component),
        "spec": {
            "replicas": replicas("gateway", scaled=shared and placed == "triton"),
            "selector": chosen(plan, component),
            # The one that owns the volume has to let go of it before the next can have it.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
            if shared
            else {"type": "Recreate"},
            "template": pod(
                plan,
                component,
                {
                    "terminationGracePeriodSeconds": drain_seconds(plan) + LEAVING_SECONDS + 10,
                    "containers": containers,
                    "volumes": [model_volume(), *volumes],
                    "nodeSelector": Value(f"{placed}.nodeSelector"),
                    "tolerations": Value(f"{placed}.tolerations"),
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
        **lively(hours=0.25),
        # The gateway beside it ends its answers first.
        "lifecycle": after(drain_seconds(plan) + LEAVING_SECONDS),
        "resources": Value("triton.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*model_mounts(plan, built), *scratch_mounts()],
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
        "lifecycle": after(LEAVING_SECONDS),
        "resources": Value("gateway.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            *model_mounts(plan, built),
            {"name": "plan", "mountPath": PLAN.rpartition("/")[0], "readOnly": True},
            {"name": "state", "mountPath": STATE},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }


def _volumes(plan: Plan, shared_memory: str | None) -> list[dict[str, Any]]:
    name = name_of(plan)
    return [
        {"name": "plan", "configMap": {"name": f"{name}-plan"}},
        {"name": "state", "persistentVolumeClaim": {"claimName": f"{name}-state"}},
        *(scratch(shared_memory) if shared_memory else [{"name": "scratch", "emptyDir": {}}]),
    ]
