"""Rules about a model repository that is there, whoever wrote it. Those about its engines are in `engines`.

`repository_violations(folder)` is for `conch check FOLDER`: nothing is started and no weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from conch_build.compile.tensorrt.engine_config import EngineConfig, read_engine
from conch_build.errors import BuildError, CheckError, ConchError
from conch_build.pack.check import repository_problems
from conch_build.pack.configs import CONFIG, PLACEHOLDER, config_text, parse_config
from conch_build.preflight.registry import ALL, Violation, find, rule

_CPP = "tensorrtllm"
_BLS = "tensorrt_llm_bls"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
_STREAMS = (
    "triton-inference-server/tensorrtllm_backend#34",
    "triton-inference-server/tensorrtllm_backend#112",
    "triton-inference-server/tensorrtllm_backend#332",
    "triton-inference-server/tensorrtllm_backend#493",
    "triton-inference-server/tensorrtllm_backend#606",
)


@dataclass(frozen=True)
class Repository:
    folder: Path

    @cached_property
    def texts(self) -> dict[str, str]:
        """Model -> its config.pbtxt, without comments; without those that are no text."""
        texts = {}
        for path in sorted(self.folder.glob(f"*/{CONFIG}")):
            try:
                texts[path.parent.name] = _without_comments(config_text(path))
            except BuildError:
                continue
        return texts

    @cached_property
    def configs(self) -> dict[str, Any]:
        """Model -> the same as Triton's message; without those that do not parse."""
        configs = {}
        for name, text in self.texts.items():
            try:
                configs[name] = parse_config(text, name)
            except BuildError:
                continue
        return configs

    @cached_property
    def engines(self) -> dict[str, EngineConfig]:
        """Model of the C++ backend -> the engine that it names, where that can be read here."""
        engines = {}
        for name, config in self.configs.items():
            path = parameter(config, "gpt_model_path")
            if config.backend == _CPP and path and Path(path).is_dir():
                try:
                    engines[name] = read_engine(Path(path))
                except ConchError:
                    continue
        return engines


def repository_violations(folder: Path) -> list[Violation]:
    """Everything that is wrong with the model repository in `folder`, errors first. CheckError: it is none."""
    repository = Repository(folder)
    if not any(folder.glob(f"*/{CONFIG}")):
        raise CheckError(f"{folder} is no model repository: no folder in it has a {CONFIG}", [])
    found = list(find({"repository": repository}, "tensorrt"))
    return sorted(found, key=lambda violation: violation.severity != "error")


@rule(
    "repository.placeholder",
    on=ALL,
    decided="repository",
    references=(
        "triton-inference-server/tensorrtllm_backend#501",
        "triton-inference-server/tensorrtllm_backend#572",
        "triton-inference-server/server#8592",
        "NVIDIA/TensorRT-LLM#2758",
    ),
)
def _no_placeholder_is_left(repository: Repository) -> Iterator[Violation]:
    """`${...}` was left in a config.pbtxt. Without quotes it stands for a number or a switch, and Triton cannot parse
    the file; within quotes it counts as not set. Each release of the templates has more of them than its README
    says."""
    for name, text in repository.texts.items():
        for line in text.splitlines():
            for match in PLACEHOLDER.finditer(line):
                quoted = line[: match.start()].count('"') % 2 == 1
                what = "counts as not set" if quoted else "does not parse"
                yield Violation(
                    f"{name}/{CONFIG}",
                    f"the placeholder `{match[0]}` was left, which {what}",
                    "Fill it, or take the parameter out.",
                    "warning" if quoted else "error",
                )


@rule("repository.broken", on=ALL, decided="repository", references=("NVIDIA/TensorRT-LLM#2758",))
def _configurations_hang_together(repository: Repository) -> Iterator[Violation]:
    """A configuration that does not parse, a file that Triton would miss, a tensor of the ensemble that nothing
    makes, a model that another names and that is not there."""
    for problem in repository_problems(repository.folder):
        model, _, what = problem.partition(": ")
        if "placeholder" not in what and "decoupled" not in what:
            yield Violation(model, what, "Correct its config.pbtxt, or pack again with `conch build`.")


@rule(
    "repository.decoupled",
    on=ALL,
    decided="repository",
    references=(
        "triton-inference-server/tensorrtllm_backend#626",
        "triton-inference-server/tensorrtllm_backend#268",
        "triton-inference-server/tensorrtllm_backend#70",
        "triton-inference-server/tensorrtllm_backend#233",
        "triton-inference-server/server#8021",
        "NVIDIA/TensorRT-LLM#6207",
    ),
)
def _models_answer_alike(repository: Repository) -> Iterator[Violation]:
    """A stream is many responses to one request, which only decoupled models give: the engine and the BLS before it
    must both be. Then `infer` over HTTP refuses, `generate` takes requests with one response alone, and streams go
    through `generate_stream` or a gRPC stream."""
    configs = repository.configs
    bls, engine = configs.get(_BLS), configs.get("tensorrt_llm")
    if bls is not None and engine is not None and decoupled(bls) != decoupled(engine):
        one, other = ("tensorrt_llm", _BLS) if decoupled(engine) else (_BLS, "tensorrt_llm")
        yield Violation(
            f"{other}/{CONFIG}", f"`{one}` is decoupled and `{other}` is not", "Set `decoupled: true` in both."
        )
    elif engine is not None and not decoupled(engine):
        yield Violation(
            f"tensorrt_llm/{CONFIG}",
            "it is not decoupled: requests with `stream` are refused",
            "Set `model_transaction_policy { decoupled: true }`, if answers are to stream.",
            "warning",
        )


@rule(
    "repository.llmapi-decoupled",
    decided="repository",
    references=(
        "triton_backend/scripts/launch_triton_server.py",
        "triton_backend/all_models/llmapi/tensorrt_llm/1/model.py",
    ),
)
def _model_yaml_is_heard(repository: Repository) -> Iterator[Violation]:
    """TensorRT-LLM's launcher turns automatic configuration off, and then what model.yaml says of decoupling and of
    batches never reaches Triton: config.pbtxt must say the same."""
    for name, config in repository.configs.items():
        path = repository.folder / name / "1" / "model.yaml"
        if not path.is_file():
            continue
        said = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("triton_config", {})
        if bool(said.get("decoupled", False)) != decoupled(config):
            yield Violation(
                f"{name}/{CONFIG}",
                f"model.yaml says `decoupled: {str(bool(said.get('decoupled'))).lower()}`, and this does not",
                "Write `model_transaction_policy { decoupled: ... }` as model.yaml has it.",
            )
        if config.max_batch_size != said.get("max_batch_size", 0):
            yield Violation(
                f"{name}/{CONFIG}",
                f"it says `max_batch_size: {config.max_batch_size}`, model.yaml {said.get('max_batch_size', 0)}",
                "Write the same in both; 0 for the LLM API.",
            )


@rule("repository.stream-text", on=ALL, decided="repository", references=_STREAMS)
def _streams_are_read_whole(repository: Repository) -> Iterator[Violation]:
    """Tokens of a stream that are made text one by one lose spaces, and characters of several tokens become question
    marks. The BLS reads the tokens so far together with `accumulate_tokens`; Conch's gateway reads them as they
    come."""
    bls = repository.configs.get(_BLS)
    if bls is not None and decoupled(bls) and parameter(bls, "accumulate_tokens").lower() not in ("true", "1"):
        yield Violation(
            f"{_BLS}/{CONFIG}",
            "it makes each token of a stream text by itself",
            "Set the parameter `accumulate_tokens` to true.",
        )


@rule(
    "repository.tokenizer",
    on=ALL,
    decided="repository",
    references=("triton_backend/all_models preprocessing/1/model.py",),
)
def _tokenizer_is_there(repository: Repository) -> Iterator[Violation]:
    """`tokenizer_dir` must be the folder of the checkpoint's tokenizer, as the server sees it. An engine's folder has
    none, and a folder outside of what the container mounts is not there."""
    for name, config in repository.configs.items():
        path = parameter(config, "tokenizer_dir")
        if path and not any((Path(path) / file).is_file() for file in _TOKENIZERS):
            there = "holds no tokenizer" if Path(path).is_dir() else "is not there"
            yield Violation(f"{name}/{CONFIG}", f"`tokenizer_dir` {path} {there}", "Name the folder of tokenizer.json.")


def parameter(config: Any, key: str) -> str:
    """Empty where it is not set; a placeholder that was left counts as not set."""
    value: str = config.parameters[key].string_value if key in config.parameters else ""
    return "" if PLACEHOLDER.search(value) else value


def decoupled(config: Any) -> bool:
    return bool(config.model_transaction_policy.decoupled)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
