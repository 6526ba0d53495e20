"""What `conch size` and `conch advise` are asked about becomes a plan and its model's facts.

A plan file, a checkpoint (a directory, a hub id, a `.gguf` file, `sample`) or a config.json alone. Weights are not
fetched and not needed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from conch_build.checkpoint import resolve
from conch_build.convert import Say
from conch_build.errors import CheckpointError
from conch_build.inspection import inspect
from conch_build.model_info import ModelInfo
from conch_build.plan import Model, Plan, load_plan, parse_plan, plan_of_draft


def plan_and_model(what: str, say: Say) -> tuple[Plan | None, ModelInfo, str]:
    """The plan, if it is one; the model's facts; the checkpoint's name. Raises PlanError or CheckpointError."""
    if what.endswith((".yaml", ".yml")):
        plan = load_plan(what)
        return plan, model_named(plan.model, say), plan.model.checkpoint
    if what.endswith(".json"):
        return None, _described(Path(what)), what
    return None, model_named(Model(checkpoint=what), say), what


def draft_of(plan: Plan, say: Say) -> ModelInfo | None:
    """The facts of a plan's draft model."""
    own = plan_of_draft(plan)
    return model_named(own.model, say) if own else None


def model_named(model: Model, say: Say) -> ModelInfo:
    """As it would be read for a GPU: its config.json is enough."""
    return resolve(model, backend="pytorch", needs_weights=False, say=say).info


def changed(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """The plan with other values at dotted keys (None: left as it is). Raises PlanError for one that a key forbids."""
    data = plan.model_dump(mode="json", exclude_unset=True)
    for key, value in changes.items():
        if value is None:
            continue
        part = data
        *path, last = key.split(".")
        for name in path:
            part = part.setdefault(name, {})
        part[last] = value
    return parse_plan(yaml.safe_dump(_with_units(data)), source="options")


def bare_plan(name: str, checkpoint: str, backend: str, max_seq_len: int) -> Plan:
    """A plan with every default, for a model that comes without one."""
    engine = {"backend": backend, "max_seq_len": max_seq_len}
    return parse_plan(yaml.safe_dump({"name": name, "model": {"checkpoint": checkpoint}, "engine": engine}))


def _with_units(data: Any) -> Any:
    """A plan's values as its file would have them: sizes in bytes with their unit, times in seconds with theirs."""
    if not isinstance(data, dict):
        return data
    written = {name: _with_units(value) for name, value in data.items()}
    cache = written.get("kv_cache")
    if isinstance(cache, dict) and isinstance(cache.get("size"), int):
        cache["size"] = f"{cache['size']}B"
    return written


def _described(path: Path) -> ModelInfo:
    if not path.is_file():
        raise CheckpointError("no such file", where=str(path), fix="Name a config.json, a plan or a checkpoint.")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder) / "config.json")
        info, problems = inspect(Path(folder), on_gpu=True, needs_weights=False)
    if info is None:
        problem = problems[0]
        raise CheckpointError(problem.what, where=str(path), fix=problem.fix, rule=problem.rule)
    return info
