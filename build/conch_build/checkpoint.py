"""Find a checkpoint and say what it is: a Hugging Face directory, a hub id, a `.gguf` file, or `sample`.

Whatever the source, the result is a local directory of safetensors that passed every check; to check a plan for GPUs,
its config.json alone will do. Compiles nothing, quantizes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conch_build.convert import Say, convert_gguf, convert_pickles, has_only_pickles
from conch_build.errors import CheckpointError
from conch_build.files import expanded, home, read_json, sha256_file
from conch_build.hub import hub_config, hub_description, hub_snapshot
from conch_build.inspection import inspect
from conch_build.model_info import ModelInfo
from conch_build.plan import Backend, Model
from conch_build.quantized import QUANTIZED_HEAD
from conch_build.sample import CONFIG, sample_gguf

SAMPLE = "sample"
_FINGERPRINTED = ("*.safetensors", QUANTIZED_HEAD, "*.json", "*.jinja", "*.txt", "*.py")


@dataclass(frozen=True)
class Checkpoint:
    """A local, whole checkpoint. `path`: the directory; `source`: as the plan names it."""

    path: Path
    source: str
    info: ModelInfo

    @cached_property
    def sha256(self) -> str:
        """Fingerprint of weights, config and tokenizer. Reads every byte, so only a build asks for it."""
        files = sorted({path for pattern in _FINGERPRINTED for path in self.path.glob(pattern)})
        listing = "".join(f"{sha256_file(path)}  {path.name}\n" for path in files)
        return hashlib.sha256(listing.encode()).hexdigest()


def default_cache_dir() -> Path:
    """Where converted checkpoints are kept."""
    return home() / "cache"


def resolve(
    model: Model,
    cache_dir: Path | None = None,
    *,
    backend: Backend = "openvino",
    needs_weights: bool = True,
    say: Say = lambda text: None,
) -> Checkpoint:
    """The checkpoint that a plan names, fetched, converted where needed, and checked for its backend.

    `needs_weights`: only false for what builds nothing, on a GPU backend. `say` hears of the steps that take long.
    Raises CheckpointError with everything that is wrong.
    """
    checkpoint, problems = examine(model, cache_dir, backend=backend, needs_weights=needs_weights, say=say)
    if len(problems) > 1:
        raise CheckpointError("\n".join(problem.message for problem in problems), rule=problems[0].rule)
    if checkpoint is None:
        raise problems[0]
    return checkpoint


def examine(
    model: Model,
    cache_dir: Path | None = None,
    *,
    backend: Backend = "openvino",
    needs_weights: bool = True,
    say: Say = lambda text: None,
) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """As `resolve`, but gives the problems one by one instead of raising them."""
    on_gpu = backend != "openvino"
    needs_weights = needs_weights or not on_gpu
    try:
        path = locate(model, cache_dir or default_cache_dir(), say, needs_weights=needs_weights)
    except CheckpointError as error:
        return None, [error]
    info, problems = inspect(
        path, trust_remote_code=model.trust_remote_code, on_gpu=on_gpu, needs_weights=needs_weights
    )
    return (Checkpoint(path, model.checkpoint, info) if info else None), problems


def locate(model: Model, cache_dir: Path, say: Say, *, needs_weights: bool = True) -> Path:
    """The local directory of a checkpoint, whatever its source; not looked into. Raises CheckpointError.

    Without `needs_weights`, what a hub id names is fetched without them.
    """
    name = model.checkpoint
    if name == SAMPLE:
        return convert_gguf(sample_gguf(cache_dir, say), cache_dir, say)
    path = expanded(name)
    if path.suffix.lower() == ".gguf" and (path.is_file() or _is_path(name)):
        return convert_gguf(_existing(path), cache_dir, say)
    if not path.is_dir() and _is_path(name):
        _existing(path)
        raise CheckpointError(
            "is a file, not a directory",
            where=str(path),
            fix="Name the directory that holds config.json, or a .gguf file.",
            rule="checkpoint.not-found",
        )
    if not path.is_dir() and not needs_weights:
        return hub_description(model)
    folder = path if path.is_dir() else hub_snapshot(model)
    if model.allow_pickle and has_only_pickles(folder):
        return convert_pickles(folder, cache_dir, say)
    return folder


def peek_config(model: Model, cache_dir: Path | None = None, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Its config.json, without downloading weights; a `.gguf` file is converted to know it."""
    path = expanded(model.checkpoint)
    if model.checkpoint == SAMPLE:
        return dict(CONFIG)
    if path.is_dir() or path.suffix.lower() == ".gguf" or _is_path(model.checkpoint):
        return read_json(locate(model, cache_dir or default_cache_dir(), say) / "config.json")
    return read_json(hub_config(model))


def _is_path(name: str) -> bool:
    """Whether it can only be a local path: hub ids are `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _existing(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError(
            "no such file or directory",
            where=str(path),
            fix="Correct `model.checkpoint` (relative paths start at the plan's folder).",
            rule="checkpoint.not-found",
        )
    return path
