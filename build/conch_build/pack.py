"""An engine and the templates of `model_repo/` become a model repository that Triton loads.

Every written config.pbtxt is parsed again as Triton would, and the ensemble's tensors are followed from end
to end. Knows nothing of how the models run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from conch_build.adapter_registry import AdapterRegistry
from conch_build.errors import BuildError, ConchError, SetupError
from conch_build.plan import Plan

_MODELS = {
    "tokens": ("tensorrt_llm",),
    "ensemble": ("tensorrt_llm", "preprocessing", "postprocessing", "ensemble"),
}
_CONFIG = "config.pbtxt"


def pack(engine: Path, out: Path, plan: Plan, registry: AdapterRegistry | None = None) -> None:
    """Write the repository of an engine artifact, and of the adapters it may serve, into `out`.

    Raises BuildError when a template does not fill, parse or connect.
    """
    values = template_values(engine.absolute(), plan)
    templates = templates_dir()
    for model in _MODELS[layout_of(plan)]:
        _write_model(templates / model, out / model, values)
    if registry is not None:
        registry.save(out / "tensorrt_llm")
    check_repository(out)


def layout_of(plan: Plan) -> str:
    """`tokens` or `ensemble`. Raises BuildError for a layout that the backend does not have."""
    layout = plan.serving.triton.layout
    if layout == "llmapi":
        raise BuildError(
            f"`llmapi` does not serve the backend `{plan.engine.backend}`",
            where="serving.triton.layout",
            fix="Take `ensemble`.",
        )
    return "ensemble" if layout == "auto" else layout


def template_values(engine: Path, plan: Plan) -> dict[str, str]:
    """What the placeholders stand for: upstream's names, values escaped for protobuf text."""
    return {
        "triton_max_batch_size": str(plan.engine.max_batch_size),
        "engine_dir": escape(str(engine)),
        "tokenizer_dir": escape(str(engine / "tokenizer")),
        "add_special_tokens": "true",
        "skip_special_tokens": "true",
        "exclude_input_in_output": "false",
        "cancellation_check_period_ms": "50",
        "stats_check_period_ms": "250",
        "stream_interval": str(plan.engine.stream_interval),
        "logits_datatype": "TYPE_FP32",
        "encoder_input_features_data_type": "TYPE_FP16",
        "prompt_embedding_table_data_type": "TYPE_FP16",
    }


def escape(text: str) -> str:
    """Text as it stands between the quotes of a protobuf text string.

    `$` is escaped too, so that no value ever looks like a placeholder that was left unfilled.
    """
    from google.protobuf.text_encoding import CEscape

    escaped: str = CEscape(text, as_utf8=True)
    return escaped.replace("$", r"\044")


def check_repository(repository: Path) -> None:
    """Parse every configuration and follow the ensemble's tensors. Raises BuildError with all it finds."""
    configs = {path.parent.name: read_config(path) for path in sorted(repository.glob(f"*/{_CONFIG}"))}
    problems = [
        f"{name}: {problem}"
        for name, config in configs.items()
        if config.HasField("ensemble_scheduling")
        for problem in _ensemble_problems(config, configs)
    ]
    if problems:
        raise BuildError("; ".join(problems), where=str(repository))


def read_config(path: Path) -> Any:
    """A config.pbtxt as Triton's ModelConfig message. Raises BuildError with the line that does not parse."""
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise SetupError(f"`{error.name}` is missing", fix="pip install 'tritonclient[grpc]'") from None
    text = path.read_text(encoding="utf-8")
    if "${" in text:
        raise BuildError("a placeholder was left unfilled", where=str(path))
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise BuildError(f"does not parse: {error}", where=str(path)) from None


def templates_dir() -> Path:
    """`conch_build/model_repo` in a wheel, `model_repo` beside `build/` in a source tree."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "model_repo", here.parents[2] / "model_repo"):
        if (folder / "tensorrt_llm" / _CONFIG).is_file():
            return folder
    raise ConchError("the templates `model_repo/` are missing", where=str(here.parent), fix="Reinstall conch.")


def _write_model(template: Path, folder: Path, values: dict[str, str]) -> None:
    text = (template / _CONFIG).read_text(encoding="utf-8")
    try:
        filled = Template(text).substitute(values)
    except KeyError as error:
        raise BuildError(f"no value for the placeholder `{error.args[0]}`", where=str(template / _CONFIG)) from None
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(filled, encoding="utf-8")
    if (template / "1").is_dir():
        shutil.copyfile(template / "1" / "model.py", version / "model.py")


def _ensemble_problems(ensemble: Any, configs: dict[str, Any]) -> Iterator[str]:
    types = {tensor.name: tensor.data_type for tensor in ensemble.input}
    used: set[str] = set()
    for step in ensemble.ensemble_scheduling.step:
        model = configs.get(step.model_name)
        if model is None:
            yield f"there is no model `{step.model_name}`"
            continue
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for name, tensor in inputs.items():
            if name not in step.input_map and not tensor.optional:
                yield f"`{model.name}` needs the input `{name}`, which nothing feeds"
        for name, source in step.input_map.items():
            used.add(source)
            if name not in inputs:
                yield f"`{model.name}` has no input `{name}`"
            elif source not in types:
                yield f"`{name}` of `{model.name}` is fed from `{source}`, which nothing makes"
            elif types[source] != inputs[name].data_type:
                yield f"`{name}` of `{model.name}` has another type than `{source}`"
        for name, target in step.output_map.items():
            if name not in outputs:
                yield f"`{model.name}` has no output `{name}`"
            else:
                types[target] = outputs[name].data_type
    for tensor in ensemble.output:
        if types.get(tensor.name) != tensor.data_type:
            yield f"the output `{tensor.name}` is not made with its type"
    for tensor in ensemble.input:
        if tensor.name not in used:
            yield f"the input `{tensor.name}` goes nowhere"
