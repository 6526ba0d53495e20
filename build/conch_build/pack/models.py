"""The Triton models of a plan, each with its configuration. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conch_build.errors import BuildError
from conch_build.launch.arrangement import TARGET
from conch_build.pack import llmapi, parameters
from conch_build.pack.configs import filled, set_parameters, templates_dir, without_own_tensors
from conch_build.pack.deployment import Deployment
from conch_build.plan import Plan

_TEXT_MODELS: dict[str, parameters.Table] = {
    "preprocessing": parameters.PREPROCESSING,
    "postprocessing": parameters.POSTPROCESSING,
    "ensemble": {},
    "tensorrt_llm_bls": parameters.BLS,
}
_ENGINE_CODE = {"openvino": "model.py", "pytorch": "llmapi.py"}


@dataclass(frozen=True)
class Model:
    """One folder of the repository."""

    name: str
    config: Any
    code: Path | None = None
    """Becomes its model.py; None: its backend needs none."""
    files: dict[str, str] = field(default_factory=dict)
    """Further files of its version, by name."""


def layout_of(plan: Plan) -> str:
    """`tokens`, `ensemble` or `llmapi`. Raises BuildError for a layout that the backend does not have."""
    layout, backend = plan.serving.triton.layout, plan.engine.backend
    if layout == "llmapi" and backend != "pytorch":
        what, fix = f"`llmapi` does not serve the backend `{backend}`", "Take `ensemble`."
    elif layout == "llmapi" and plan.engine.lora.adapters:
        what, fix = "`llmapi` has no input that names an adapter", "Take `ensemble` or `tokens`."
    elif layout == "tokens" and backend == "tensorrt" and plan.engine.speculation.method == "draft":
        what, fix = "a draft model is asked by `tensorrt_llm_bls`, which `tokens` leaves out", "Take `ensemble`."
    else:
        return "ensemble" if layout == "auto" else layout
    raise BuildError(what, where="serving.triton.layout", fix=fix)


def models_of(deployment: Deployment) -> Iterator[Model]:
    """Every model of the plan's layout. Raises BuildError when a template does not fill or parse."""
    layout = layout_of(deployment.plan)
    if layout == "llmapi":
        yield _llmapi(deployment)
        return
    yield _engine(deployment)
    if layout == "tokens":
        return
    if deployment.drafts:
        yield _engine(deployment.of_draft())
    for name, table in _TEXT_MODELS.items():
        template = templates_dir() / name
        config = filled(template, parameters.placeholders(deployment))
        set_parameters(config, parameters.values(table, deployment))
        if deployment.plan.engine.backend == "tensorrt" and name in ("ensemble", "tensorrt_llm_bls"):
            without_own_tensors(config)
            _let_preprocessing_end(config)
        code = template / "1" / "model.py"
        yield Model(name, config, code if code.is_file() else None)


def _engine(deployment: Deployment) -> Model:
    """The model of token ids: TensorRT-LLM's own backend, or one of Conch's python models."""
    backend = deployment.plan.engine.backend
    config = filled(templates_dir() / TARGET, parameters.placeholders(deployment))
    config.name = deployment.model
    if backend == "tensorrt":
        set_parameters(config, parameters.values(parameters.ENGINE, deployment))
        without_own_tensors(config)
        return Model(deployment.model, config)
    set_parameters(config, parameters.values(parameters.PYTHON_ENGINE, deployment))
    return Model(deployment.model, config, templates_dir() / TARGET / "1" / _ENGINE_CODE[backend])


def _let_preprocessing_end(config: Any) -> None:
    """TensorRT-LLM's own backend knows no end of an answer but what it is told: preprocessing tells it the model's."""
    for step in config.ensemble_scheduling.step:
        for name in ("END_ID", "PAD_ID"):
            if step.model_name == "preprocessing":
                step.input_map[name] = name.lower()
                step.output_map[f"OUT_{name}"] = f"_{name}"
            elif step.model_name == TARGET:
                step.input_map[name.lower()] = f"_{name}"


def _llmapi(deployment: Deployment) -> Model:
    template = templates_dir() / "llmapi"
    config = filled(template, parameters.placeholders(deployment))
    set_parameters(config, parameters.values(parameters.LLMAPI, deployment))
    return Model(TARGET, config, template / "1" / "model.py", {"model.yaml": llmapi.model_yaml(deployment)})
