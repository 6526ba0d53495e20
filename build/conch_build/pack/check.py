"""What is wrong with a model repository, whoever wrote it: everything at once. Changes nothing, starts nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conch_build.errors import BuildError
from conch_build.pack.configs import CONFIG, PLACEHOLDER, config_text, parse_config

Configs = Mapping[str, Any]
"""Model -> its configuration; None where that does not parse, which is told once and not for all that hangs on it."""

_CPP_BACKEND = "tensorrtllm"
_CPP_NEEDS = ("gpt_model_type", "tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path")
"""Parameters, be they empty, without which the C++ backend does not load."""
_CALLED = ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name")
"""Parameters by which a BLS names the models that it asks."""
_TEXT_MODELS = ("preprocessing", "postprocessing")


def check_repository(repository: Path) -> None:
    """Raises BuildError with all that `repository_problems` finds."""
    if problems := repository_problems(repository):
        raise BuildError("; ".join(problems), where=str(repository))


def repository_problems(repository: Path) -> list[str]:
    """One sentence for each problem, its model in front.

    Placeholders left, configurations that do not parse, files that Triton would miss, broken edges of an ensemble,
    decoupled and other models in a BLS, models that are named but not there.
    """
    paths = sorted(repository.glob(f"*/{CONFIG}"))
    if not paths:
        return [f"no folder in it has a {CONFIG}"]
    problems: list[str] = []
    configs: dict[str, Any] = {}
    for path in paths:
        name = path.parent.name
        try:
            text = config_text(path)
        except BuildError as error:
            configs[name] = None
            problems.append(error.message)
            continue
        left = dict.fromkeys(match[0] for match in PLACEHOLDER.finditer(_without_comments(text)))
        problems += [f"{name}: the placeholder `{placeholder}` was left unfilled" for placeholder in left]
        try:
            configs[name] = parse_config(PLACEHOLDER.sub("", text), path.name)  # left in quotes it counts as not set
        except BuildError as error:
            configs[name] = None
            if not left:  # else that is why
                problems.append(f"{name}/{error.message}")
    for name, config in configs.items():
        if config is not None:
            problems += [f"{name}: {problem}" for problem in _problems(repository / name, config, configs)]
    return problems


def _problems(folder: Path, config: Any, configs: Configs) -> Iterator[str]:
    if not (config.backend or config.platform):
        yield f"its {CONFIG} names neither a backend nor a platform"
    yield from _file_problems(folder, config)
    if config.HasField("ensemble_scheduling"):
        yield from _ensemble_problems(config, configs)
    if any(_parameter(config, key) for key in _CALLED):
        yield from _bls_problems(config, configs)
    groups = _parameter(config, "gpu_device_ids")
    instances = sum(group.count for group in config.instance_group)
    if groups and len(groups.split(";")) != instances:
        yield f"`gpu_device_ids` has GPUs for {len(groups.split(';'))} instances, and there are {instances}"


def _file_problems(folder: Path, config: Any) -> Iterator[str]:
    if config.name and config.name != folder.name:
        yield f"its configuration is that of `{config.name}`"
    versions = [version for version in folder.iterdir() if version.is_dir() and version.name.isdigit()]
    if not versions:
        yield "it has no version, a folder named by a number"
    if config.backend == "python":
        yield from (f"{version.name}/model.py is missing" for version in versions if not _code(version, config))
    if config.backend == _CPP_BACKEND:
        if not _parameter(config, "gpt_model_path"):
            yield "`gpt_model_path` names no engine"
        missing = [key for key in _CPP_NEEDS if key not in config.parameters]
        yield from (f"`{key}` is missing: the backend does not load without it, be it empty" for key in missing)


def _ensemble_problems(ensemble: Any, configs: Configs) -> Iterator[str]:
    made: dict[str, Any] = {tensor.name: tensor for tensor in ensemble.input}
    used: set[str] = set()
    for step in ensemble.ensemble_scheduling.step:
        used.update(step.input_map.values())
        model = configs.get(step.model_name)
        if model is None:  # what it makes is not known
            made.update(dict.fromkeys(step.output_map.values()))
            if step.model_name not in configs:
                yield f"there is no model `{step.model_name}`"
            continue
        if model.max_batch_size < ensemble.max_batch_size:
            yield f"its batch of {ensemble.max_batch_size} is larger than that of `{model.name}`"
        yield from _input_problems(step, model, made)
        outputs = {tensor.name: tensor for tensor in model.output}
        yield from (f"`{model.name}` has no output `{name}`" for name in step.output_map if name not in outputs)
        made.update((target, outputs.get(name)) for name, target in step.output_map.items())
    for tensor in ensemble.output:
        if tensor.name not in made or _difference(made[tensor.name], tensor) == "type":
            yield f"the output `{tensor.name}` is not made with its type"
    yield from (f"the input `{tensor.name}` goes nowhere" for tensor in ensemble.input if tensor.name not in used)


def _input_problems(step: Any, model: Any, made: Mapping[str, Any]) -> Iterator[str]:
    """Edges into a step; `made`: the tensors before it, None for one that is not known."""
    inputs = {tensor.name: tensor for tensor in model.input}
    for name, tensor in inputs.items():
        if name not in step.input_map and not tensor.optional:
            yield f"`{model.name}` needs the input `{name}`, which nothing feeds"
    for name, source in step.input_map.items():
        if name not in inputs:
            yield f"`{model.name}` has no input `{name}`"
        elif source not in made:
            yield f"`{name}` of `{model.name}` is fed from `{source}`, which nothing makes"
        elif difference := _difference(made[source], inputs[name]):
            yield f"`{name}` of `{model.name}` has another {difference} than `{source}`"


def _difference(made: Any, wanted: Any) -> str | None:
    """`type` or `shape`."""
    if made is None:
        return None
    if made.data_type != wanted.data_type:
        return "type"
    fit = len(made.dims) == len(wanted.dims) and all(
        one == other or -1 in (one, other) for one, other in zip(made.dims, wanted.dims, strict=True)
    )
    return None if fit else "shape"


def _bls_problems(bls: Any, configs: Configs) -> Iterator[str]:
    """A BLS and the models that it asks must agree on how many responses a request has."""
    for name in _TEXT_MODELS:
        if name not in configs:
            yield f"there is no model `{name}`"
    for key in _CALLED:
        name = _parameter(bls, key)
        if name and name not in configs:
            yield f"`{key}` names `{name}`, and there is no such model"
    target = configs.get(_parameter(bls, _CALLED[0]))
    draft = configs.get(_parameter(bls, _CALLED[1]))
    for model in (target, draft):
        if model is not None and _decoupled(model) != _decoupled(bls):
            yield f"it is {_named(bls)}, but `{model.name}` is {_named(model)}"


def _named(config: Any) -> str:
    return "decoupled" if _decoupled(config) else "not decoupled"


def _decoupled(config: Any) -> bool:
    return bool(config.model_transaction_policy.decoupled)


def _parameter(config: Any, key: str) -> str:
    """Empty where it is not set."""
    value: str = config.parameters[key].string_value if key in config.parameters else ""
    return value


def _code(version: Path, config: Any) -> bool:
    return (version / (config.default_model_filename or "model.py")).is_file()


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
