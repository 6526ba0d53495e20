"""Plans whose manifests are kept as they were reviewed: a file of all that `kubectl apply` is given, for each."""

from __future__ import annotations

from pathlib import Path

from conch_build.deploy import Built, kubernetes_files
from conch_build.plan import parse_plan
from tests.golden.cases import EXPECTED

BUILT = Built(Path("/srv/engine/e-1"), Path("/srv/repository/r-1"))
PLANS = {
    "cpu": "{name: My_Model, model: {checkpoint: sample}}",
    "cpu-shared": "{name: m, model: {checkpoint: sample}, serving: {replicas: 3, gateway: {database: {url: "
    "'postgresql://conch@db/conch'}}}}",
    "engine": "{name: m, model: {checkpoint: sample}, target: {gpu: h100}, engine: {backend: tensorrt, "
    "parallel: {tensor: 2}}, serving: {gateway: {tracing: {endpoint: 'http://otel:4318'}, models: {other: "
    "{servers: [{openai: 'http://vllm:8000/v1', key_env: VLLM_KEY}]}}}}}",
    "llm-api": "{name: m, model: {checkpoint: sample}, target: {gpu: h100}, engine: {backend: pytorch}, "
    "serving: {gateway: {database: {url: 'postgresql://conch@db/conch'}}}}",
    "nodes": "{name: m, model: {checkpoint: sample}, target: {gpu: h100, gpus_per_node: 2}, engine: "
    "{backend: tensorrt, parallel: {tensor: 2, pipeline: 2}}}",
}


def files_of(text: str) -> dict[str, str]:
    """What is written of a plan, by its path."""
    files = kubernetes_files(parse_plan(text), text, BUILT, "/d")
    return {file.path.removeprefix("/d/"): file.text for file in files}


def manifests_file(name: str) -> Path:
    return EXPECTED / "kubernetes" / f"{name}.yaml"


def manifests(name: str) -> str:
    files = files_of(PLANS[name])
    return "".join(f"--- # {path}\n{text}" for path, text in files.items() if path.startswith("manifests/"))
