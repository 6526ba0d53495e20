"""LoRA adapters as PEFT saves them: what is in a directory, whether it fits a model, and its weights.

Read without torch or PEFT, so that the serving side can load one while it runs. Layouts read:

    adapter_config.json        `LoraConfig` of PEFT
    adapter_model.safetensors  base_model.model.LAYER.lora_A.weight [rank, in], ...lora_B.weight [out, rank]

What PEFT knows beyond that (DoRA, biases, trained embeddings, ...) is refused by name: leaving it out would give
another model than was trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch_build import adapter_config
from conch_build.errors import CheckpointError
from conch_build.families import HEAD, expected_tensors, linear_layers
from conch_build.files import read_json
from conch_build.weights import Tensor, read_header

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from conch_build.model_info import ModelInfo

    Floats = npt.NDArray[np.float32]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

Layers = Mapping[str, tuple[int, int]]
"""Name of a linear layer -> (out, in)."""

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LARGEST = 65504.0  # of f16. Beyond it a product could overflow, and infinity times a mask of 0 is no number.
_WEIGHT = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_MERGE = "Merge the adapter into its checkpoint, or train it without."
_KINDS = (
    ("lora_embedding_", "LoRA on embeddings", _MERGE),
    ("lora_magnitude_vector", "DoRA", _MERGE),
    ("base_layer", "weights of the base model", "Save it with `save_embedding_layers=False`."),
    ("embed_tokens.weight", "embeddings of its own", "Save it with `save_embedding_layers=False`, or merge it."),
    (".bias", "biases that were trained", _MERGE),
    ("", "what is no LoRA of a linear layer", _MERGE),
)


@dataclass(frozen=True)
class Pair:
    """The two weights of one layer, and what their product is multiplied with."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True)
class Adapter:
    """A directory that was found to fit."""

    folder: Path
    pairs: Mapping[str, Pair]
    """By the layer's name."""

    @property
    def rank(self) -> int:
        """The largest of its layers'."""
        return max(pair.a.shape[0] for pair in self.pairs.values())

    def weights(self) -> Iterator[tuple[str, Floats, Floats]]:
        """For each layer its name, A [rank, in], and B [rank, out] with the scale in it.

        Raises CheckpointError when a weight is no number or too large to be one for long.
        """
        import numpy as np

        for layer, pair in self.pairs.items():
            a, b = _floats(pair.a), _floats(pair.b)
            for weight in (a, b):
                if not np.abs(weight).max(initial=0) <= _LARGEST:  # also for NaN
                    what = f"has weights of `{layer}` that are not finite or beyond {_LARGEST:,.0f}"
                    raise _wrong(self.folder / WEIGHTS, "lora.not-finite", what, "Train it again: it has diverged.")
            yield layer, a, np.ascontiguousarray(b.T) * np.float32(pair.scale)


def adaptable_layers(info: ModelInfo) -> dict[str, tuple[int, int]]:
    """The layers of a model that an adapter can add to. The experts of a mixture and their routers are none."""
    shapes = expected_tensors(info)
    names = [f"{name}.weight" for name in linear_layers(info) if ".experts." not in name]
    names += [HEAD] if HEAD in shapes else []
    return {name.removesuffix(".weight"): (shapes[name][0], shapes[name][1]) for name in names}


def open_adapter(folder: Path, layers: Layers, max_rank: int) -> Adapter:
    """`examine`, for those who need one that fits. Raises CheckpointError with the first problem."""
    adapter, problems = examine(folder, layers, max_rank)
    if adapter is None:
        raise problems[0]
    return adapter


def examine(folder: Path, layers: Layers, max_rank: int) -> tuple[Adapter | None, list[CheckpointError]]:
    """Read the headers of the adapter in `folder`: the adapter if it fits, and all that is wrong with it."""
    try:
        config, tensors = _read(folder)
    except CheckpointError as error:
        return None, [error]
    problems = list(adapter_config.problems(config, str(folder / CONFIG)))
    sides, strange = _sides(tensors)
    problems += _strange(folder, strange)
    if problems:
        return None, problems
    problems += _misfits(folder, config, sides, layers, max_rank)
    if problems:
        return None, problems
    pairs = {layer: Pair(a, b, adapter_config.scale(config, layer)) for layer, (a, b) in sides.items()}
    return Adapter(folder, pairs), []


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not folder.is_dir():
        raise _wrong(folder, "lora.files", "no such directory", "Name a directory that PEFT's `save_pretrained` wrote.")
    for name in (CONFIG, WEIGHTS):
        if (folder / name).is_file():
            continue
        if name == WEIGHTS and (folder / "adapter_model.bin").exists():
            what = "holds only pickle weights (adapter_model.bin), which can run code when they are read"
            raise _wrong(folder, "lora.pickle", what, "Save it again with `safe_serialization=True`.")
        raise _wrong(folder, "lora.files", f"has no {name}", "Save it again with PEFT's `save_pretrained`.")
    return read_json(folder / CONFIG), dict(read_header(folder / WEIGHTS))


def _sides(tensors: Mapping[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """Layer -> A and B; and the names of tensors that are none of these, or whose other half is missing."""
    halves: dict[str, dict[str, Tensor]] = {}
    strange = []
    for name, tensor in tensors.items():
        found = _WEIGHT.fullmatch(name)
        if found and len(tensor.shape) == 2:
            halves.setdefault(found["layer"], {})[found["side"]] = tensor
        else:
            strange.append(name)
    whole = {layer: (half["A"], half["B"]) for layer, half in halves.items() if len(half) == 2}
    return whole, strange + [f"{layer}.lora_{next(iter(half))}" for layer, half in halves.items() if len(half) < 2]


def _strange(folder: Path, names: Sequence[str]) -> Iterator[CheckpointError]:
    """One problem for each kind of tensor that is refused."""
    seen = set()
    for name in names:
        _, kind, fix = next(entry for entry in _KINDS if entry[0] in name)
        if kind not in seen:
            seen.add(kind)
            yield _wrong(folder / WEIGHTS, "lora.unsupported", f"holds {kind} (`{name}`)", fix)


def _misfits(
    folder: Path,
    config: Mapping[str, Any],
    sides: Mapping[str, tuple[Tensor, Tensor]],
    layers: Layers,
    max_rank: int,
) -> Iterator[CheckpointError]:
    """What does not fit the model."""
    where = folder / WEIGHTS
    if not sides:
        yield _wrong(where, "lora.files", "holds no weights")
        return
    if dtypes := {half.dtype for pair in sides.values() for half in pair} - _DTYPES.keys():
        what = f"holds weights in {', '.join(sorted(dtypes))}"
        yield _wrong(where, "lora.dtype", what, "Save it in float32, float16 or bfloat16.")
    if unknown := [layer for layer in sides if layer not in layers]:
        what = f"adds to {_some(unknown)}, which this model has not, or not as a linear layer of its own"
        yield _wrong(where, "lora.target-modules", what, f"Train it for this model: {_kinds(layers)} can be adapted.")
    if missing := [layer for layer in layers if adapter_config.is_target(config, layer) and layer not in sides]:
        what = f"targets {_some(missing)} of this model, but has no weights for it"
        yield _wrong(where, "lora.base-model", what, "It was made for another base model, or is cut short.")
    known = {layer: pair for layer, pair in sides.items() if layer in layers}
    for layer, (a, b) in known.items():
        rows, columns = layers[layer]
        if (a.shape[1], b.shape[0]) != (columns, rows):
            what = f"is for a `{layer}` of {b.shape[0]} x {a.shape[1]}; this model's is {rows} x {columns}"
            yield _wrong(where, "lora.base-model", what, "It was made for another base model.")
            break
    for layer, (a, b) in known.items():
        rank = adapter_config.rank(config, layer)
        if a.shape[0] != rank or b.shape[1] != rank:
            what = f"has rank {a.shape[0]} and {b.shape[1]} at `{layer}`, where its config says {rank}"
            yield _wrong(where, "lora.rank", what, "Use the config that belongs to these weights.")
            break
    largest = max(a.shape[0] for a, _ in sides.values())
    if largest > max_rank:
        what = f"has rank {largest}, above the engine's {max_rank}"
        yield _wrong(where, "lora.rank", what, f"Set `engine.lora.max_rank: {largest}`.")


def _floats(tensor: Tensor) -> Floats:
    """The tensor as float32. Its file must still be as its header was read."""
    import numpy as np

    kind = np.dtype(_DTYPES[tensor.dtype])
    try:
        stored = np.fromfile(tensor.file, kind, tensor.size, offset=tensor.start).reshape(tensor.shape)
    except (OSError, ValueError):
        raise _wrong(tensor.file, "lora.files", "changed while it was read", "Load it again.") from None
    if tensor.dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _kinds(layers: Layers) -> str:
    return ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))


def _some(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _wrong(where: Path, rule: str, what: str, fix: str | None = None) -> CheckpointError:
    return CheckpointError(what, where=str(where), fix=fix, rule=rule)
