"""config.pbtxt as Triton's own message: templates filled and parsed, messages written and read.

Knows nothing of plans and of what a configuration means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from conch_build.errors import BuildError, ConchError, SetupError

CONFIG = "config.pbtxt"
PLACEHOLDER = re.compile(r"\$\{(\w*)\}?")
_OWN_PREFIX = "conch_"
_LEAF = re.compile(r"\{\n([^{}]*?)\s*\}")
_ENTRY = re.compile(r"^((?:input|output|parameters|instance_group) \{)\n((?:[^{}]|\{[^{}\n]*\})*)\n\}", re.MULTILINE)


def config_text(path: Path) -> str:
    """The text of a config.pbtxt. Raises BuildError for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BuildError(f"cannot be read: {reason}", where=f"{path.parent.name}/{CONFIG}") from None


def parse_config(text: str, where: str) -> Any:
    """Text as Triton's ModelConfig message. Raises BuildError with the line that does not parse."""
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise SetupError(f"`{error.name}` is missing", fix="pip install 'tritonclient[grpc]'") from None
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise BuildError(f"does not parse: {error}", where=where) from None


def read_config(path: Path) -> Any:
    """A finished config.pbtxt. Raises BuildError when it does not parse or a placeholder was left in it."""
    text = config_text(path)
    if left := PLACEHOLDER.search(text):
        raise BuildError(f"the placeholder `{left[1]}` was left unfilled", where=str(path))
    return parse_config(text, str(path))


def filled(template: Path, values: Mapping[str, str]) -> Any:
    """A template's configuration. Raises BuildError for a placeholder that has no value, by its name."""
    path = template / CONFIG
    try:
        text = Template(path.read_text(encoding="utf-8")).substitute(values)
    except KeyError as error:
        raise BuildError(f"no value for the placeholder `{error.args[0]}`", where=str(path)) from None
    return parse_config(text, str(path))


def set_parameters(config: Any, values: Mapping[str, str]) -> None:
    for key, value in values.items():
        config.parameters[key].string_value = value


def without_own_tensors(config: Any) -> None:
    """Take out the tensors that are Conch's own, for an engine that has upstream's alone."""
    for tensors in (config.input, config.output):
        kept = [tensor for tensor in tensors if not tensor.name.startswith(_OWN_PREFIX)]
        del tensors[:]
        tensors.extend(kept)
    for step in config.ensemble_scheduling.step:
        for entries in (step.input_map, step.output_map):
            for key in [key for key in entries if key.startswith(_OWN_PREFIX)]:
                del entries[key]


def render(config: Any) -> str:
    """The message as text, a tensor a line; no value looks like a placeholder."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config, as_utf8=True).replace("${", r"\044{")
    text = _LEAF.sub(lambda leaf: f"{{ {_one_line(leaf[1])} }}", text)
    return _ENTRY.sub(lambda entry: f"{entry[1]} {_one_line(entry[2])} }}", text)


def templates_dir() -> Path:
    """`conch_build/model_repo` in a wheel, `model_repo` beside `build/` in a source tree."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "model_repo", here.parents[3] / "model_repo"):
        if (folder / "tensorrt_llm" / CONFIG).is_file():
            return folder
    raise ConchError("the templates `model_repo/` are missing", where=str(here.parents[1]), fix="Reinstall conch.")


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines())
