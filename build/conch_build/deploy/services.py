"""The services of a deployment as a compose file has them: Triton on GPUs or on the CPU, and the gateway before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conch_build.deploy.artifacts import Built
from conch_build.launch import ServerFlags, arrangement_of, start_command
from conch_build.plan import Plan

KEY, BIND = "CONCH_ADMIN_KEY", "CONCH_BIND"
"""Variables of `.env`."""

STATE, _STATE = "gateway", "/var/lib/conch"
"""The volume of what outlives the gateway, its keys and its ledger among it, and where it lies inside."""
_PLAN = "/etc/conch/conch.yaml"
_BOUND = f"${{{BIND}:-127.0.0.1}}"
_HTTP, _GRPC, _METRICS, _GATEWAY = 8000, 8001, 8002, 8080
_ALWAYS = {"init": True, "restart": "unless-stopped", "stop_grace_period": "45s"}


def services(plan: Plan, built: Built) -> dict[str, Any]:
    """By name. Raises PlanError for a server that needs several nodes."""
    if plan.engine.backend == "openvino":
        # The CPU's Triton stays on loopback, which the gateway shares.
        triton = {**_triton_on_cpu(plan, built), "ports": [_gateway_port(plan)]}
        return {"triton": triton, "gateway": {**_gateway(plan, built, "127.0.0.1"), "network_mode": "service:triton"}}
    return {
        "triton": _triton_on_gpus(plan, built),
        "gateway": {**_gateway(plan, built, "triton"), "ports": [_gateway_port(plan)]},
    }


def _triton_on_gpus(plan: Plan, built: Built) -> dict[str, Any]:
    arrangement = arrangement_of(plan)
    marker = "@admin-key@"
    command = start_command(ServerFlags(str(built.repository), marker, host="0.0.0.0"), arrangement)
    gpus = {"driver": "nvidia", "count": arrangement.gpus, "capabilities": ["gpu"]}
    ports = plan.serving.triton
    published = ((ports.http_port, _HTTP), (ports.grpc_port, _GRPC), (ports.metrics_port, _METRICS))
    return {
        "build": {"context": ".", "dockerfile": "triton.Dockerfile"},
        "command": [_literal(word).replace(marker, f"${{{KEY}:?}}") for word in command.argv],
        **({"environment": dict(command.env)} if command.env else {}),
        "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
        "shm_size": "2gb",
        "ulimits": {"memlock": -1, "stack": 67108864},
        **_ALWAYS,
        "volumes": list(_volumes(plan, built)),
        "ports": [_port("127.0.0.1", outer, inner) for outer, inner in published],
        "healthcheck": _ready("60m"),  # hundreds of gigabytes may have to be read
    }


def _triton_on_cpu(plan: Plan, built: Built) -> dict[str, Any]:
    return {
        "build": {"context": ".", "dockerfile": "triton.Dockerfile"},
        "command": ["python3", "-m", "conch.triton", _literal(str(built.repository))],
        "shm_size": "256mb",
        **_ALWAYS,
        "volumes": list(_volumes(plan, built)),
        "healthcheck": _ready("5m"),
    }


def _gateway(plan: Plan, built: Built, triton: str) -> dict[str, Any]:
    health = f"http://127.0.0.1:{_GATEWAY}/health/ready"
    asks = f"import urllib.request; urllib.request.urlopen('{health}', timeout=5)"
    return {
        "build": {"context": ".", "dockerfile": "gateway.Dockerfile"},
        "command": [
            *("python3", "-m", "conch.gateway", _literal(str(built.engine))),
            *("--repository", _literal(str(built.repository))),
            *("--grpc-url", f"{triton}:{_GRPC}", "--metrics-url", f"http://{triton}:{_METRICS}/metrics"),
            *("--host", "0.0.0.0", "--port", str(_GATEWAY), "--published-on", _BOUND),
            *("--plan", _PLAN),
        ],
        "environment": {"CONCH_HOME": _STATE, **{name: f"${{{name}:-}}" for name in _secrets(plan)}},
        "depends_on": {"triton": {"condition": "service_healthy"}},
        **_ALWAYS,
        "volumes": [
            *_volumes(plan, built),
            {"type": "bind", "source": "./conch.yaml", "target": _PLAN, "read_only": True},
            {"type": "volume", "source": STATE, "target": _STATE},
        ],
        "healthcheck": {**_ready("1m"), "test": ["CMD", "python3", "-c", asks]},
    }


def _secrets(plan: Plan) -> Iterator[str]:
    """Variables that the gateway reads, from `.env`."""
    gateway = plan.serving.gateway
    if (gateway.database.url or "").startswith("postgresql://"):
        yield "PGPASSWORD"
    yield from {server.key_env: None for model in gateway.models.values() for server in model.servers if server.key_env}


def _ready(start: str) -> dict[str, Any]:
    """By use: a token is generated. `start`: how long a server may load before it is called unhealthy."""
    return {
        "test": ["CMD", "python3", "/opt/conch/ready.py", f"http://127.0.0.1:{_HTTP}"],
        "interval": "15s",
        "timeout": "30s",
        "retries": 3,
        "start_period": start,
    }


def _volumes(plan: Plan, built: Built) -> Iterator[dict[str, Any]]:
    """In the long form, which has no trouble with colons; a folder that is missing is an error, not made anew."""
    for path in built.mounts(plan):
        bind = {"create_host_path": False}
        yield {"type": "bind", "source": _literal(path), "target": _literal(path), "read_only": True, "bind": bind}


def _gateway_port(plan: Plan) -> dict[str, Any]:
    return _port(_BOUND, plan.serving.gateway.port, _GATEWAY)


def _port(host: str, outer: int, inner: int) -> dict[str, Any]:
    """A plan's port of 0 takes a free one."""
    return {"target": inner, "host_ip": host, **({"published": str(outer)} if outer else {}), "protocol": "tcp"}


def _literal(text: str) -> str:
    """A text in which compose finds no variable."""
    return text.replace("$", "$$")
