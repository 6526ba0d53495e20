"""Safetensors weights by their headers: which tensors there are, where, and whether the files are whole.

Reads a few kilobytes a file and no tensor data, except to compare two tensors on demand. Format:
https://huggingface.co/docs/safetensors/index#format (u64 header length, JSON header, data).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conch_build.errors import CheckpointError
from conch_build.files import impostor, read_json
from conch_build.units import format_bytes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_KINDS = ("*.safetensors", "pytorch_model*.bin")
_MAX_HEADER_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Tensor:
    """One tensor's place: `start` and `end` are byte offsets in `file`."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Weights:
    """Every tensor of a checkpoint by name."""

    files: tuple[Path, ...]
    tensors: dict[str, Tensor]

    @cached_property
    def byte_count(self) -> int:
        return sum(tensor.end - tensor.start for tensor in self.tensors.values())

    def same_bytes(self, first: str, second: str) -> bool:
        """Whether two tensors hold the same bytes. Reads both."""
        one, other = self.tensors[first], self.tensors[second]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return all(a == b for a, b in zip(_chunks(one), _chunks(other), strict=True))


def has_weights(folder: Path) -> bool:
    """Whether there are any, whole or not, of any kind."""
    return (folder / INDEX).exists() or any(True for kind in _KINDS for _ in folder.glob(kind))


def read_weights(folder: Path, problems: list[CheckpointError]) -> Weights | None:
    """Read all headers; each bad file adds to `problems`. None when there is nothing to read."""
    names = _file_names(folder, problems)
    tensors: dict[str, Tensor] = {}
    count = len(problems)
    for name in names:
        try:
            tensors.update(read_header(folder / name))
        except CheckpointError as error:
            problems.append(error)
    if not names or len(problems) > count:
        return None
    return Weights(tuple(folder / name for name in names), tensors)


def _file_names(folder: Path, problems: list[CheckpointError]) -> list[str]:
    if (folder / INDEX).exists():
        return _indexed_names(folder, problems)
    if (folder / SINGLE).exists():
        return [SINGLE]
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickles:
        problems.append(
            CheckpointError(
                f"holds only pickle weights ({', '.join(pickles)}), which can run code when they are read",
                where=str(folder),
                fix="Use a safetensors checkpoint, or set `model.allow_pickle: true` if you trust the files.",
                rule="checkpoint.pickle",
            )
        )
    else:
        problems.append(
            CheckpointError(
                f"holds no weights (neither {SINGLE} nor {INDEX})",
                where=str(folder),
                fix="Point `model.checkpoint` at a whole Hugging Face directory.",
                rule="checkpoint.no-weights",
            )
        )
    return []


def _indexed_names(folder: Path, problems: list[CheckpointError]) -> list[str]:
    try:
        mapping = read_json(folder / INDEX).get("weight_map")
    except CheckpointError as error:
        problems.append(error)
        return []
    if not isinstance(mapping, dict) or not mapping:
        problems.append(
            CheckpointError(
                "has no `weight_map`",
                where=str(folder / INDEX),
                fix="Download it again.",
                rule="checkpoint.index",
            )
        )
        return []
    names = sorted({str(name) for name in mapping.values()})
    # A name with a folder in it would read outside the checkpoint.
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        problems.append(
            CheckpointError(
                f"lists {len(names)} shards, {len(missing)} of them missing: {', '.join(missing)}",
                where=str(folder / INDEX),
                fix="Download the missing files.",
                rule="checkpoint.missing-shard",
            )
        )
    return [name for name in names if name not in missing]


def read_header(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and place of each tensor in one file. Raises CheckpointError when the file is not whole."""
    if error := impostor(path):
        raise error
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _MAX_HEADER_BYTES:
            raise _damaged(path, size, "does not start like a safetensors file")
        if 8 + length > size:
            raise _truncated(path, size, 8 + length, "header alone")
        raw = file.read(length)
    try:
        entries = json.loads(raw)
        tensors = {
            name: Tensor(
                entry["dtype"],
                tuple(entry["shape"]),
                path,
                *(8 + length + offset for offset in entry["data_offsets"]),
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, size, "has a header that is not safetensors'") from None
    expected = max((tensor.end for tensor in tensors.values()), default=8 + length)
    if size < expected:
        raise _truncated(path, size, expected, "header")
    if size > expected:
        raise _damaged(path, size, f"has {size - expected:,} bytes more than its header says")
    yield from tensors.items()


def _truncated(path: Path, size: int, expected: int, part: str) -> CheckpointError:
    return CheckpointError(
        f"is cut short: its {part} says {expected:,} bytes, the file has {size:,}",
        where=str(path),
        fix="Download it again.",
        rule="checkpoint.truncated",
    )


def _damaged(path: Path, size: int, what: str) -> CheckpointError:
    return CheckpointError(
        f"{what} ({format_bytes(size)})",
        where=str(path),
        fix="Download it again.",
        rule="checkpoint.not-safetensors",
    )


def _chunks(tensor: Tensor) -> Iterator[bytes]:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        left = tensor.end - tensor.start
        while left > 0:
            chunk = file.read(min(_CHUNK_BYTES, left))
            left -= len(chunk)
            yield chunk
