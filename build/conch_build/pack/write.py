"""A repository on disk: every model's configuration, code and files, checked once they are written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from conch_build.adapter_registry import AdapterRegistry
from conch_build.launch.arrangement import TARGET
from conch_build.model_info import ModelInfo
from conch_build.pack.check import check_repository
from conch_build.pack.configs import CONFIG, render
from conch_build.pack.deployment import Deployment
from conch_build.pack.models import Model, layout_of, models_of
from conch_build.plan import Plan

VERSION = "1"


def pack(
    engine: Path,
    out: Path,
    plan: Plan,
    info: ModelInfo,
    registry: AdapterRegistry | None = None,
    draft: ModelInfo | None = None,
) -> None:
    """Write the repository of an engine artifact into `out`.

    `info`: the model's facts, `draft`: those of its draft model; `registry`: the adapters that Conch's own models may
    serve. Raises BuildError when a template does not fill, parse or connect, PlanError for what cannot be launched.
    """
    for model in models_of(Deployment(plan, engine.absolute(), info, draft)):
        _write(model, out / model.name)
    if registry is not None and plan.engine.backend != "tensorrt":
        registry.save(out / TARGET)
    check_repository(out)


def check_plan(plan: Plan, info: ModelInfo, draft: ModelInfo | None = None) -> None:
    """Raise what `pack` would raise about the plan, before hours are spent on an engine."""
    list(models_of(Deployment(plan, Path("/engine"), info, draft)))


def deciding_settings(plan: Plan) -> dict[str, Any]:
    """Of the plan, what decides the repository of a given engine."""
    triton = plan.serving.triton
    return {
        "layout": layout_of(plan),
        "instances": triton.instances,
        "launch": triton.launch,
        "stream_interval": plan.engine.stream_interval,
        "kv_cache": plan.engine.kv_cache.model_dump(mode="json"),
        "gpus_per_node": plan.target.gpus_per_node,
    }


def _write(model: Model, folder: Path) -> None:
    version = folder / VERSION
    version.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(render(model.config), encoding="utf-8")
    if model.code is not None:
        shutil.copyfile(model.code, version / "model.py")
    for name, text in model.files.items():
        (version / name).write_text(text, encoding="utf-8")
