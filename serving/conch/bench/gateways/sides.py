"""How each gateway is started before the upstream: alone on core 0, without what can be left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conch.bench.gateways.upstream import MODEL
from conch_build.errors import SetupError
from conch_build.files import home


@dataclass(frozen=True)
class Gateway:
    name: str
    command: list[str]
    model: str = MODEL
    env: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 120.0


def conch(upstream: str, port: int, folder: Path) -> Gateway:
    plan = folder / "conch.yaml"
    plan.write_text(
        f"name: bench\nmodel: {{checkpoint: sample}}\nserving:\n  gateway:\n    port: {port}\n"
        f"    models:\n      {MODEL}: {{servers: [{{openai: {upstream}/v1}}]}}\n"
    )
    command = [sys.executable, "-m", "conch.cli", "gateway", str(plan)]
    return Gateway("conch", command, env={"CONCH_HOME": str(folder)})


def relay(upstream: str, port: int, folder: Path) -> Gateway:
    return Gateway("bare FastAPI relay", [sys.executable, "-m", "conch.bench.gateways.relay", upstream, str(port)])


def litellm(upstream: str, port: int, folder: Path) -> Gateway:
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n"
        f"      {{model: openai/{MODEL}, api_base: {upstream}/v1, api_key: none}}\n"
    )
    command = [_peer("litellm", "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    # Its documentation's advice for production: one worker a core, errors only, no access log.
    return Gateway(
        "LiteLLM proxy",
        [*command, "--num_workers", "1"],
        env={
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )


def vllm_router(upstream: str, port: int, folder: Path) -> Gateway:
    command = [_peer("vllm-router", "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", upstream, "--policy", "round_robin", "--prometheus-port", str(port + 1)]
    return Gateway("vllm-router", [*command, "--log-level", "error"])


SIDES: Mapping[str, Callable[[str, int, Path], Gateway]] = {
    "conch": conch,
    "relay": relay,
    "litellm": litellm,
    "vllm-router": vllm_router,
}


def _peer(name: str, command: str) -> str:
    path = home() / "peers" / name / "bin" / command
    if not os.access(path, os.X_OK):
        raise SetupError(f"{name} is not installed", where=str(path), fix="`scripts/bench` puts it there.")
    return str(path)
