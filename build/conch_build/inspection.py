"""Whether a local checkpoint is whole, safe and fit for a backend: its JSON files and weight headers say.

For a GPU, config.json alone is enough to check a plan; and what TensorRT-LLM reads may be quantized in more ways than
are known here, so that tensors of such checkpoints are not compared one by one. Loads no weights and imports no model
code. What is wrong is collected, so that a person sees it all at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from conch_build.compile.openvino.layouts import Wanted, layout_of, wanted_tensors
from conch_build.config_types import wrong_types
from conch_build.errors import CheckpointError
from conch_build.families import COMPILABLE, HEAD, ON_GPUS, complete, expected_tensors, refusal
from conch_build.files import read_json
from conch_build.model_info import ModelInfo, counted_parameters, model_info
from conch_build.weights import Weights, has_weights, read_weights


def inspect(
    folder: Path, *, trust_remote_code: bool = False, on_gpu: bool = False, needs_weights: bool = True
) -> tuple[ModelInfo | None, list[CheckpointError]]:
    """Read the checkpoint in `folder`: its facts if they can be known, and all that is wrong with it.

    `on_gpu`: for TensorRT-LLM instead of the CPU engine; `needs_weights`: config.json alone will not do.
    """
    if not needs_weights and not has_weights(folder):
        return _described(folder, trust_remote_code)
    problems: list[CheckpointError] = []
    config = _read_config(folder / "config.json", problems)
    generation = _read_config(folder / "generation_config.json", problems, needed=False) or {}
    tokenizer_config = _read(folder / "tokenizer_config.json", problems, needed=False) or {}
    ids = _read_token_ids(folder, problems)
    weights = read_weights(folder, problems)
    if config is None:
        return None, problems
    if not trust_remote_code:
        problems += _remote_code(folder, config, tokenizer_config)
    if not _supported(folder, config, problems, on_gpu) or weights is None:
        return None, problems
    try:
        info = model_info(folder, config, generation, tokenizer_config, ids, weights)
    except CheckpointError as error:
        return None, [*problems, error]
    if on_gpu and (info.quantization is not None or info.architecture not in COMPILABLE):
        return (None if problems else replace(info, parameters=counted_parameters(info))), problems
    try:
        layout = layout_of(info.quantization, folder) if info.quantization else None
        dense = expected_tensors(info)
        if "d2t" in weights.tensors:  # a draft: its head has a row for each token it can guess
            dense[HEAD] = (*weights.tensors["d2t"].shape, info.hidden_size)
        wanted = wanted_tensors(layout, dense, weights.tensors, str(folder / "config.json"))
        problems += _wrong_tensors(folder, wanted, weights)
    except CheckpointError as error:
        return None, [*problems, error]
    if layout is not None:  # packed tensors hold several weights an element
        info = replace(info, parameters=sum(map(prod, dense.values())))
    return (None if problems else info), problems


def _described(folder: Path, trust_remote_code: bool) -> tuple[ModelInfo | None, list[CheckpointError]]:
    """A checkpoint without weights: what its JSON files say, which may lack all but config.json."""
    problems: list[CheckpointError] = []
    config = _read_config(folder / "config.json", problems)
    generation = _read_config(folder / "generation_config.json", problems, needed=False) or {}
    tokenizer_config = _read(folder / "tokenizer_config.json", problems, needed=False) or {}
    ids = _read_token_ids(folder, problems) if (folder / "tokenizer.json").is_file() else {}
    if config is None:
        return None, problems
    if not trust_remote_code:
        problems += _remote_code(folder, config, tokenizer_config)
    if not _supported(folder, config, problems, on_gpu=True) or problems:
        return None, problems
    try:
        return model_info(folder, config, generation, tokenizer_config, ids, None), []
    except CheckpointError as error:
        return None, [error]


def _read_config(path: Path, problems: list[CheckpointError], *, needed: bool = True) -> dict[str, Any] | None:
    """None also where a value is of another type than its key promises: nothing could be made of it."""
    config = _read(path, problems, needed=needed)
    wrong = [] if config is None else list(wrong_types(config, path))
    problems += wrong
    return None if wrong else config


def _read(path: Path, problems: list[CheckpointError], *, needed: bool = True) -> dict[str, Any] | None:
    if not path.is_file():
        if needed:
            problems.append(
                CheckpointError(
                    f"has no {path.name}",
                    where=str(path.parent),
                    fix="Point `model.checkpoint` at a whole Hugging Face directory.",
                    rule=f"checkpoint.no-{path.stem.replace('_', '-')}",
                )
            )
        return None
    try:
        return read_json(path)
    except CheckpointError as error:
        problems.append(error)
        return None


def _read_token_ids(folder: Path, problems: list[CheckpointError]) -> dict[str, int]:
    """Token -> id of tokenizer.json; added tokens win over the vocabulary."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        fix = "Copy the tokenizer's files beside the weights."
        if any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json")):
            fix = "Write it with transformers: `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
        problems.append(
            CheckpointError("has no tokenizer.json", where=str(folder), fix=fix, rule="checkpoint.no-tokenizer")
        )
        return {}
    tokenizer = _read(path, problems)
    if tokenizer is None:
        return {}
    try:
        vocab = tokenizer["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: [token, score] pairs in the order of their ids
            vocab = {token: index for index, (token, _) in enumerate(vocab)}
        added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", [])}
        return {str(token): operator.index(number) for token, number in {**vocab, **added}.items()}
    except (KeyError, TypeError, ValueError):
        problems.append(
            CheckpointError(
                "is not a tokenizer: no vocabulary in it",
                where=str(path),
                fix="Download it again.",
                rule="checkpoint.tokenizer",
            )
        )
        return {}


def _remote_code(folder: Path, *configs: Mapping[str, Any]) -> Iterable[CheckpointError]:
    if any(config.get("auto_map") for config in configs):
        code = sorted(path.name for path in folder.glob("*.py"))
        brings = f" ({', '.join(code)})" if code else ""
        yield CheckpointError(
            f"asks to run Python code of its own{brings}: `auto_map` in its config",
            where=str(folder),
            fix="Read that code, then set `model.trust_remote_code: true`.",
            rule="checkpoint.remote-code",
        )


_UNKNOWN = {False: "which cannot be compiled", True: "whose weights Conch cannot count, nor say where they fit"}


def _supported(folder: Path, config: Mapping[str, Any], problems: list[CheckpointError], on_gpu: bool) -> bool:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = ON_GPUS if on_gpu else COMPILABLE
    if on_gpu and name in known:
        return True
    if name in known:
        reason = refusal(complete(config))
        if reason:
            problems.append(
                CheckpointError(
                    reason,
                    where=str(folder / "config.json"),
                    fix="Choose another model, or correct the config if it is wrong.",
                    rule="checkpoint.unsupported",
                )
            )
        return True
    problems.append(
        CheckpointError(
            f"is a {name}, {_UNKNOWN[on_gpu]}" if name else "names no architecture",
            where=str(folder / "config.json"),
            fix=f"Choose a model of one of these: {', '.join(sorted(known))}.",
            rule="checkpoint.architecture",
        )
    )
    return False


def _wrong_tensors(folder: Path, expected: Mapping[str, Wanted], weights: Weights) -> Iterable[CheckpointError]:
    missing = [name for name in expected if name not in weights.tensors]
    if missing:
        yield CheckpointError(
            f"lacks {_some([f'`{name}`' for name in missing], 4, ', ', ' tensors')}",
            where=str(folder),
            fix="Download the weights again"
            + (", or set `tie_word_embeddings` to true in config.json if they are tied." if HEAD in missing else "."),
            rule="checkpoint.missing-tensor",
        )
    shapes = [
        f"`{name}` is {list(weights.tensors[name].shape)}, not {' or '.join(str(list(s)) for s in wanted.shapes)}"
        for name, wanted in expected.items()
        if name in weights.tensors and weights.tensors[name].shape not in wanted.shapes
    ]
    if shapes:
        yield CheckpointError(
            f"config.json and weights disagree: {_some(shapes, 3)}",
            where=str(folder),
            fix="Use the config.json that belongs to these weights.",
            rule="checkpoint.tensor-shape",
        )
    dtypes = [
        f"`{name}` is {weights.tensors[name].dtype}, not {' or '.join(wanted.dtypes)}"
        for name, wanted in expected.items()
        if name in weights.tensors and weights.tensors[name].dtype not in wanted.dtypes
    ]
    if dtypes:
        yield CheckpointError(
            f"holds tensors that its `quantization_config` does not account for: {_some(dtypes, 3)}",
            where=str(folder),
            fix="Use the config.json that belongs to these weights, or name the original checkpoint.",
            rule="checkpoint.tensor-dtype",
        )


def _some(items: list[str], count: int, separator: str = "; ", noun: str = "") -> str:
    """The first `count` of `items`, and how many more there are."""
    more = f" and {len(items) - count} more{noun}" if len(items) > count else ""
    return separator.join(items[:count]) + more
