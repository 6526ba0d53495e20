"""The pods of Triton on GPUs: a set of them or, where an engine spans nodes, groups that are one server each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.deploy.kubernetes.chart import Document, Value
from conch_build.deploy.kubernetes.parts import (
    CONTAINER_SECURITY,
    GRPC,
    HTTP,
    LEAVING_SECONDS,
    METRICS,
    WORKER,
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
)
from conch_build.launch import ADMIN_KEY, SSH_PORT, ServerFlags, arrangement_of, pod_scripts, start_command
from conch_build.plan import Plan

_SCRIPTS, _KEYS = "/etc/conch-nodes", "/etc/conch-ssh"


def engines(plan: Plan, built: Built) -> Iterator[Document]:
    if arrangement_of(plan).nodes > 1:
        yield Document("nodes.yaml", _nodes(plan, built))
        yield Document("nodes-scripts.yaml", _scripts(plan, built))
    else:
        yield Document("triton.yaml", _set(plan, built))


def _set(plan: Plan, built: Built) -> dict[str, Any]:
    """Its pods are found by one look-up of the service's name."""
    command = start_command(_flags(plan, built, "$(ADMIN_KEY)"), arrangement_of(plan))
    environment = [{"name": name, "value": value} for name, value in command.env.items()]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(plan, "triton"),
        "spec": {
            "replicas": replicas("triton", scaled=True),
            "serviceName": f"{name_of(plan)}-triton",
            "podManagementPolicy": "Parallel",
            "selector": chosen(plan, "triton"),
            "template": _pod(plan, "triton", _server(plan, built, list(command.argv), environment)),
        },
    }


def _nodes(plan: Plan, built: Built) -> dict[str, Any]:
    """A pod that fails takes its group with it: the ranks of an engine live and die together."""
    mounts = [
        {"name": "scripts", "mountPath": _SCRIPTS, "readOnly": True},
        {"name": "keys", "mountPath": _KEYS, "readOnly": True},
    ]
    volumes = [
        {"name": "scripts", "configMap": {"name": f"{name_of(plan)}-nodes"}},
        {"name": "keys", "secret": {"secretName": Value("triton.sshSecret")}},
    ]
    leader = _server(plan, built, ["sh", f"{_SCRIPTS}/leader.sh"], [])
    worker = {
        **_container(plan, built, ["sh", f"{_SCRIPTS}/worker.sh"]),
        "ports": [{"name": "ssh", "containerPort": SSH_PORT}],
        "readinessProbe": {"tcpSocket": {"port": "ssh"}},
        "lifecycle": _draining(plan),
    }
    for container in (leader, worker):
        container["volumeMounts"] = [*container["volumeMounts"], *mounts]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(plan, "triton", suffix="nodes"),
        "spec": {
            "replicas": replicas("triton", scaled=True),
            "leaderWorkerTemplate": {
                "size": arrangement_of(plan).nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(plan, "triton", leader, volumes),
                "workerTemplate": _pod(plan, WORKER, worker, volumes),
            },
        },
    }


def _scripts(plan: Plan, built: Built) -> dict[str, Any]:
    scripts = pod_scripts(_flags(plan, built, ADMIN_KEY), arrangement_of(plan), _SCRIPTS, _KEYS)
    about = metadata(plan, "triton", suffix="nodes")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": scripts}


def _flags(plan: Plan, built: Built, key: str) -> ServerFlags:
    return ServerFlags(str(built.repository), key, host="0.0.0.0", exit_seconds=drain_seconds(plan))


def _server(plan: Plan, built: Built, command: list[str], environment: list[dict[str, Any]]) -> dict[str, Any]:
    """What clients talk to."""
    secret = {"secretKeyRef": {"name": Value("triton.adminSecret"), "key": "key"}}
    container = _container(plan, built, command)
    return {
        **container,
        "env": [*environment, {"name": "ADMIN_KEY", "valueFrom": secret}, *container["env"]],
        "ports": [
            {"name": "http", "containerPort": HTTP},
            {"name": "grpc", "containerPort": GRPC},
            {"name": "metrics", "containerPort": METRICS},
        ],
        **lively(hours=1),
        "lifecycle": _draining(plan),
    }


def _draining(plan: Plan) -> dict[str, Any]:
    """A signal ends MPI's processes at once, so that their requests have to be over by then; Triton alone drains."""
    return after(LEAVING_SECONDS + (drain_seconds(plan) if arrangement_of(plan).uses_mpi else 0))


def _container(plan: Plan, built: Built, command: list[str]) -> dict[str, Any]:
    return {
        "name": "triton",
        "image": Value("images.triton"),
        "imagePullPolicy": Value("images.pullPolicy"),
        "command": command,
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": Value("triton.resources"),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [*model_mounts(plan, built), *scratch_mounts()],
    }


def _pod(
    plan: Plan, component: str, container: dict[str, Any], volumes: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return pod(
        plan,
        component,
        {
            "terminationGracePeriodSeconds": drain_seconds(plan) + LEAVING_SECONDS + 10,
            "containers": [container],
            "volumes": [model_volume(), *(volumes or []), *scratch("2Gi")],
            "nodeSelector": Value("triton.nodeSelector"),
            "tolerations": Value("triton.tolerations"),
        },
    )
