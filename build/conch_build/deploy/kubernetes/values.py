"""What a chart's user may set: a default, a schema and a line of explanation each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch_build.deploy.kubernetes.parts import asks_others, name_of
from conch_build.gpu.cards import gpu_of
from conch_build.launch import arrangement_of
from conch_build.plan import Plan

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
_SWITCH = {"type": "boolean"}
_MAPPING = {"type": "object"}
_LIST = {"type": "array", "items": {"type": "object"}}
_RESOURCES = {
    "type": "object",
    "properties": {"limits": _MAPPING, "requests": _MAPPING},
    "additionalProperties": False,
}
_ANYWHERE = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
_SELECTOR = "labels of NVIDIA's GPU feature discovery; `nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3` is one too"
_PINNED = "; a static CPU manager pins it where limits are requests, whole CPUs and memory, of the gateway too"
_GIB = 1 << 30


@dataclass(frozen=True)
class Setting:
    default: Any
    schema: Mapping[str, Any]
    text: str


Settings = dict[str, "Setting | Settings"]


def settings_of(plan: Plan, shared: bool) -> Settings:
    """`shared`: the gateways have a database in common, so that there may be several."""
    name, gpus = name_of(plan), plan.engine.backend != "openvino"
    many = _COUNT if shared else {"type": "integer", "const": 1}
    engines: Settings = {
        "resources": Setting(_engine_resources(plan), _RESOURCES, "of each Triton" + ("" if gpus else _PINNED)),
        "nodeSelector": Setting(_fitting(plan), _MAPPING, _SELECTOR if gpus else ""),
        "tolerations": Setting([], _LIST, ""),
    }
    gateway: Settings = {
        "replicas": Setting(
            2 if shared and gpus else 1,
            many,
            "pods" if shared else "more need `serving.gateway.database.url: postgresql://...` in the plan",
        ),
        "resources": Setting(
            {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}, _RESOURCES, "of each gateway"
        ),
        "envFrom": Setting([], _LIST, "as `- secretRef: {name: conch-env}`: PGPASSWORD, keys of relayed servers"),
    }
    if gpus:
        engines |= {
            "replicas": Setting(plan.serving.replicas, _COUNT, "Tritons"),
            "adminSecret": Setting(f"{name}-admin", _TEXT, "its `key` opens Triton's administration"),
        }
        if arrangement_of(plan).nodes > 1:
            engines["sshSecret"] = Setting(f"{name}-ssh", _TEXT, "`key` and `key.pub`, made by ssh-keygen -t ed25519")
        gateway |= {"nodeSelector": Setting({}, _MAPPING, ""), "tolerations": Setting([], _LIST, "")}
    elif shared:
        gateway["replicas"] = Setting(plan.serving.replicas, many, "pods, each with an engine and a gateway")
    access = {"type": "array", "items": {"enum": ["ReadWriteOnce", "ReadWriteMany"]}, "minItems": 1}
    found: Settings = {
        "images": {
            "triton": Setting(f"{name}-triton:latest", _TEXT, "of triton.Dockerfile"),
            "gateway": Setting(f"{name}-gateway:latest", _TEXT, "of gateway.Dockerfile"),
            "pullPolicy": Setting("IfNotPresent", {"enum": ["Always", "IfNotPresent", "Never"]}, ""),
        },
        "models": {
            "volume": Setting(
                {"persistentVolumeClaim": {"claimName": "conch-models", "readOnly": True}},
                {"type": "object", "minProperties": 1, "maxProperties": 1},
                "what user 1000 may read: a claim, or `persistentVolumeClaim: null, image: {reference: ...}`",
            )
        },
        "triton": engines,
        "gateway": gateway,
        "state": {
            "size": Setting("10Gi", _TEXT, "of batches' files" + ("" if shared else ", keys and the ledger")),
            "storageClass": Setting(None, {"type": ["string", "null"]}, "null: the cluster's own"),
            "accessModes": Setting(["ReadWriteMany" if shared else "ReadWriteOnce"], access, ""),
        },
        "networkPolicy": {
            "enabled": Setting(True, _SWITCH, ""),
            "from": Setting([], _LIST, "who may ask the gateway; nobody named: everybody"),
            **({"to": Setting(_ANYWHERE, {**_LIST, "minItems": 1}, "whom it may ask")} if asks_others(plan) else {}),
        },
        "inferencePool": {
            "enabled": Setting(False, _SWITCH, "needs an Inference Gateway in the cluster"),
            "endpointPicker": {
                "name": Setting(f"{name}-picker", _TEXT, "its service"),
                "port": Setting(9002, {"type": "integer", "minimum": 1, "maximum": 65535}, ""),
            },
        },
        "monitoring": {
            "enabled": Setting(False, _SWITCH, "needs the Prometheus operator's resources"),
            "keySecret": Setting(f"{name}-metrics", _TEXT, "its `key` is an API key of the scope `metrics`"),
        },
    }
    if gpus or shared:
        found |= {
            "autoscaling": {
                "enabled": Setting(
                    False, _SWITCH, "by Prometheus' adapter and the external metric conch_queue_requests"
                ),
                "minReplicas": Setting(1, _COUNT, ""),
                "maxReplicas": Setting(4, _COUNT, ""),
                "waiting": Setting(
                    "8", {"type": "string", "pattern": "^[0-9]+$"}, "requests in the queue for each one"
                ),
            },
            "keda": {
                "enabled": Setting(False, _SWITCH, "instead of that"),
                "prometheus": Setting("http://prometheus.monitoring:9090", _TEXT, ""),
            },
        }
    return found


def _fitting(plan: Plan) -> dict[str, str]:
    """Nodes by what an engine is compiled for: the compute capability."""
    if plan.engine.backend == "openvino":
        return {}
    major, minor = divmod(gpu_of(plan).sm, 10)
    return {"nvidia.com/gpu.compute.major": str(major), "nvidia.com/gpu.compute.minor": str(minor)}


def _engine_resources(plan: Plan) -> dict[str, Any]:
    if plan.engine.backend != "openvino":
        arrangement = arrangement_of(plan)
        count = str(arrangement.gpus // arrangement.nodes)
        return {"limits": {"nvidia.com/gpu": count}, "requests": {"cpu": "8", "memory": "64Gi"}}
    cpus = "4" if plan.engine.threads == "auto" else str(plan.engine.threads)
    memory = f"{2 + -(-plan.engine.kv_cache.size // _GIB)}Gi"  # beside the cache: weights, and Triton itself
    return {"requests": {"cpu": cpus, "memory": memory}, "limits": {"cpu": cpus}}


def defaults(settings: Settings) -> dict[str, Any]:
    return {key: item.default if isinstance(item, Setting) else defaults(item) for key, item in settings.items()}


def schema(settings: Settings) -> dict[str, Any]:
    """A JSON Schema: what is not there may not be set. Helm takes a value of null for none."""
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": [key for key, item in settings.items() if not (isinstance(item, Setting) and item.default is None)],
        "properties": {},
    }
    for key, item in settings.items():
        if isinstance(item, Setting):
            found["properties"][key] = {**item.schema, **({"description": item.text} if item.text else {})}
        else:
            found["properties"][key] = schema(item)
    return found


def values_yaml(settings: Settings, depth: int = 0) -> str:
    """`values.yaml`, with its explanations."""
    lines = []
    for key, item in settings.items():
        indent = "  " * depth
        if isinstance(item, Setting):
            comment = f"  # {item.text}" if item.text else ""
            lines.append(f"{indent}{key}: {json.dumps(item.default)}{comment}\n")
        else:
            lines.append(f"{indent}{key}:\n{values_yaml(item, depth + 1)}")
    return "".join(lines)
