"""What keeps it going and watched: disruptions, autoscaling by the queue, Prometheus, Grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from conch_build.deploy.kubernetes.chart import Document, Value
from conch_build.deploy.kubernetes.parts import chosen, metadata
from conch_build.launch import arrangement_of
from conch_build.monitoring import monitoring
from conch_build.plan import Plan


def operation(plan: Plan, shared: bool) -> Iterator[Document]:
    gpus = plan.engine.backend != "openvino"
    for component in ("gateway", "triton") if gpus else ("gateway",):
        name = "disruptions.yaml" if component == "gateway" else f"{component}-disruptions.yaml"
        yield Document(name, _disruptions(plan, component))
    if gpus or shared:  # else there is one pod, and there may be no other
        yield Document("autoscaler.yaml", _autoscaler(plan), when="autoscaling.enabled")
        yield Document("keda.yaml", _keda(plan), when="keda.enabled")
    yield Document("service-monitor.yaml", _monitor(plan), when="monitoring.enabled")
    yield Document("alerts.yaml", _alerts(plan), when="monitoring.enabled")
    yield Document("dashboard.yaml", _dashboard(plan), when="monitoring.enabled")


def _disruptions(plan: Plan, component: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(plan, component),
        "spec": {"maxUnavailable": 1, "selector": chosen(plan, component)},
    }


def _scaled(plan: Plan) -> dict[str, Any]:
    """What holds the engines."""
    if plan.engine.backend == "openvino":
        return {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata(plan, "gateway")["name"]}
    if arrangement_of(plan).nodes > 1:
        name = metadata(plan, "triton", suffix="nodes")["name"]
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": name}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": metadata(plan, "triton")["name"]}


def _autoscaler(plan: Plan) -> dict[str, Any]:
    """By the requests that wait in the gateways, as Prometheus' adapter tells them."""
    metric = {
        "type": "External",
        "external": {
            "metric": {"name": "conch_queue_requests", "selector": {"matchLabels": {"model_name": plan.name}}},
            "target": {"type": "AverageValue", "averageValue": Value("autoscaling.waiting")},
        },
    }
    slowly = {"stabilizationWindowSeconds": 300, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(plan, "engines"),
        "spec": {
            "scaleTargetRef": _scaled(plan),
            "minReplicas": Value("autoscaling.minReplicas"),
            "maxReplicas": Value("autoscaling.maxReplicas"),
            "metrics": [metric],
            "behavior": {"scaleDown": slowly},
        },
    }


def _keda(plan: Plan) -> dict[str, Any]:
    """The same by KEDA, which asks Prometheus itself."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(plan, "engines"),
        "spec": {
            "scaleTargetRef": _scaled(plan),
            "minReplicaCount": Value("autoscaling.minReplicas"),
            "maxReplicaCount": Value("autoscaling.maxReplicas"),
            "cooldownPeriod": 300,
            "triggers": [
                {
                    "type": "prometheus",
                    "metadata": {
                        "serverAddress": Value("keda.prometheus"),
                        "query": f"sum(conch:queue_requests{{model_name={json.dumps(plan.name)}}})",
                        "threshold": Value("autoscaling.waiting"),
                    },
                }
            ],
        },
    }


def _monitor(plan: Plan) -> dict[str, Any]:
    key = {"secretKeyRef": {"name": Value("monitoring.keySecret"), "key": "key"}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(plan, "gateway"),
        "spec": {
            "selector": chosen(plan, "gateway"),
            "endpoints": [
                {
                    "port": "http",
                    "path": "/metrics",
                    "interval": "15s",
                    "authorization": {"type": "Bearer", "credentials": key["secretKeyRef"]},
                }
            ],
        },
    }


def _alerts(plan: Plan) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(plan, "gateway", suffix="alerts"),
        "spec": yaml.safe_load(monitoring("alerts.yml")),
    }


def _dashboard(plan: Plan) -> dict[str, Any]:
    """Found by Grafana's sidecar."""
    about = metadata(plan, "gateway", suffix="dashboard")
    about["labels"]["grafana_dashboard"] = "1"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "data": {"conch.json": json.dumps(json.loads(monitoring("grafana.json")), separators=(",", ":"))},
    }
