"""Plans and repositories for the tests of packing; the model is Llama 3 8B by its facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from conch_build.model_info import ModelInfo
from conch_build.pack import Deployment, pack, read_config
from conch_build.plan import Plan, parse_plan
from tests.build.models import LLAMA_8B

ENGINE = Path("/engines/a")


def plan_for(backend: str = "openvino", *, triton: dict[str, Any] | None = None, **engine: Any) -> Plan:
    plan = {
        "name": "m",
        "model": {"checkpoint": "sample"},
        "target": {"gpu": "h100"},
        "engine": {"backend": backend, "max_batch_size": 48, **engine},
        "serving": {"triton": triton or {}},
    }
    return parse_plan(yaml.safe_dump(plan))


def deployed(plan: Plan, info: ModelInfo = LLAMA_8B) -> Deployment:
    return Deployment(plan, ENGINE, info)


def packed(out: Path, plan: Plan, engine: Path = ENGINE, info: ModelInfo = LLAMA_8B) -> dict[str, Any]:
    """The repository's configurations by model."""
    pack(engine, out, plan, info)
    return {path.parent.name: read_config(path) for path in out.glob("*/config.pbtxt")}


def parameters(config: Any) -> dict[str, str]:
    return {key: config.parameters[key].string_value for key in config.parameters}
