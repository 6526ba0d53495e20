"""A repository in one page, before there is one: for each model its batches, instances and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conch_build.model_info import ModelInfo
from conch_build.pack.deployment import Deployment
from conch_build.pack.models import Model, models_of
from conch_build.plan import Plan


def repository_summary(plan: Plan, engine: Path, info: ModelInfo, draft: ModelInfo | None = None) -> str:
    """The models that `pack` would write for the engine that is going to be at `engine`.

    Raises BuildError and PlanError as `pack` does.
    """
    return "\n".join(line for model in models_of(Deployment(plan, engine, info, draft)) for line in _lines(model))


def _lines(model: Model) -> Iterator[str]:
    config = model.config
    facts = [config.backend or config.platform, f"max_batch_size {config.max_batch_size}"]
    if config.model_transaction_policy.decoupled:
        facts.append("decoupled")
    if instances := sum(group.count for group in config.instance_group):
        facts.append(f"{instances} instance{'s' if instances > 1 else ''}")
    yield f"{model.name}: {', '.join(facts)}"
    if config.HasField("ensemble_scheduling"):
        yield f"  steps  {' -> '.join(step.model_name for step in config.ensemble_scheduling.step)}"
    yield from _parameters(config)
    for name, text in model.files.items():
        yield f"  {name}"
        yield from (f"    {line}" for line in text.splitlines())


def _parameters(config: Any) -> Iterator[str]:
    width = max(map(len, config.parameters), default=0)
    for key in sorted(config.parameters):
        yield f"  {key:<{width}}  {config.parameters[key].string_value or '(empty)'}"
