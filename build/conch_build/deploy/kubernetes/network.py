"""Who finds whom, and who may talk to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conch_build.deploy.kubernetes.chart import Document, Value
from conch_build.deploy.kubernetes.parts import (
    GATEWAY,
    GRPC,
    HTTP,
    METRICS,
    WORKER,
    asks_others,
    chosen,
    labels,
    metadata,
    name_of,
)
from conch_build.launch import arrangement_of
from conch_build.plan import Plan

_NAMES = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
"""Look-ups."""


def network(plan: Plan) -> Iterator[Document]:
    gpus = plan.engine.backend != "openvino"
    yield Document("service.yaml", _service(plan))
    if gpus:
        yield Document("triton-service.yaml", _headless(plan))
    yield Document("network-policy.yaml", _around_the_gateway(plan), when="networkPolicy.enabled")
    if gpus:
        yield Document("triton-network-policy.yaml", _around_triton(plan), when="networkPolicy.enabled")
        if arrangement_of(plan).nodes > 1:
            yield Document("nodes-network-policy.yaml", _among_nodes(plan), when="networkPolicy.enabled")
    yield Document("inference-pool.yaml", _pool(plan), when="inferencePool.enabled")


def _service(plan: Plan) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan, "gateway", suffix="gateway"),
        "spec": {
            "selector": labels(plan, "gateway"),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _headless(plan: Plan) -> dict[str, Any]:
    """A look-up of its name tells the address of each Triton that is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(plan, "triton"),
        "spec": {
            "clusterIP": "None",
            "selector": labels(plan, "triton"),
            "ports": [{"name": "grpc", "port": GRPC}, {"name": "metrics", "port": METRICS}],
        },
    }


def _around_the_gateway(plan: Plan) -> dict[str, Any]:
    """`networkPolicy.from`: who may ask; everybody by default. Out: DNS, Triton, and what the plan names."""
    out: list[Any] = [_NAMES]
    if asks_others(plan):
        out.append({"to": Value("networkPolicy.to")})
    if plan.engine.backend != "openvino":
        out.append({"to": [{"podSelector": chosen(plan, "triton")}], "ports": [_tcp(GRPC), _tcp(METRICS)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(plan, "gateway"),
        "spec": {
            "podSelector": chosen(plan, "gateway"),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": Value("networkPolicy.from"), "ports": [_tcp(GATEWAY)]}],
            "egress": out,
        },
    }


def _around_triton(plan: Plan) -> dict[str, Any]:
    """It asks nobody for a key: only gateways reach it, and it reaches nobody."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(plan, "triton"),
        "spec": {
            "podSelector": chosen(plan, "triton"),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": chosen(plan, "gateway")}], "ports": [_tcp(GRPC), _tcp(METRICS), _tcp(HTTP)]}
            ],
            "egress": [],
        },
    }


def _among_nodes(plan: Plan) -> dict[str, Any]:
    """Ranks of one engine talk over ports of MPI's and NCCL's choice; what `_around_triton` allows comes on top."""
    among = {"key": "app.kubernetes.io/component", "operator": "In", "values": ["triton", WORKER]}
    pods = {"matchLabels": {"app.kubernetes.io/name": name_of(plan)}, "matchExpressions": [among]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(plan, "triton", suffix="nodes"),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
            "egress": [_NAMES, {"to": [{"podSelector": pods}]}],
        },
    }


def _pool(plan: Plan) -> dict[str, Any]:
    """For an Inference Gateway, which chooses among the gateways by their metrics."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {**metadata(plan, "gateway"), "name": name_of(plan)},
        "spec": {
            "selector": chosen(plan, "gateway"),
            "targetPorts": [{"number": GATEWAY}],
            "endpointPickerRef": {
                "name": Value("inferencePool.endpointPicker.name"),
                "port": {"number": Value("inferencePool.endpointPicker.port")},
            },
        },
    }


def _tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}
