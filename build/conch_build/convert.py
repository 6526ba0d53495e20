"""Other weight formats made into Hugging Face safetensors directories, once, in the cache.

GGUF files (read by transformers, widened to bf16) and, when a plan allows it, pickle `.bin` weights. A cached
directory is named after the hash of what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conch_build.errors import CheckpointError
from conch_build.extras import require
from conch_build.files import impostor, made_once, sha256_file
from conch_build.weights import INDEX, SINGLE

Say = Callable[[str], None]

_RECIPE = 1
"""Raised when conversion changes, so that what an older Conch cached is made again."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, {**_BYTE_LEVEL, "use_regex": True}],
    "llama-bpe": [
        {"type": "Split", "pattern": {"Regex": _LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False},
        {**_BYTE_LEVEL, "use_regex": False},
    ],
}
"""How `tokenizer.ggml.pre` splits text before merging; transformers gives every model GPT-2's rule."""


def require_gguf_reader() -> None:
    """Raises SetupError when what reads a GGUF file is not installed."""
    require("converting a GGUF file", "build", "torch", "transformers", "gguf")


def convert_gguf(file: Path, cache_dir: Path, say: Say) -> Path:
    """The bf16 Hugging Face directory of a `.gguf` file. Raises CheckpointError if it cannot be read."""
    if error := impostor(file):
        raise error
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise CheckpointError(
            f"does not start like a GGUF file ({file.stat().st_size:,} bytes)",
            where=str(file),
            fix="Download it again.",
            rule="checkpoint.gguf",
        )
    target = cache_dir / "gguf" / f"{file.stem}-{sha256_file(file)[:12]}-{_RECIPE}"
    with made_once(target) as scratch:
        if scratch is not None:
            require_gguf_reader()
            say(f"converting {file.name} to safetensors (once)")
            try:
                with _quiet_transformers():
                    _write_gguf(file, scratch)
            except Exception as error:  # the readers raise whatever a damaged file leads them to
                if isinstance(error, OSError) and error.errno:
                    raise  # the disk's fault, not the file's
                raise CheckpointError(
                    f"cannot be converted ({type(error).__name__}: {error})",
                    where=str(file),
                    fix="Download it again; if that does not help, use the model's Hugging Face directory.",
                    rule="checkpoint.gguf",
                ) from None
    return target


def _write_gguf(file: Path, folder: Path) -> None:
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.model").unlink(missing_ok=True)  # the GGUF itself
    pre = GGUFReader(file).get_field("tokenizer.ggml.pre")
    splits = _PRE_TOKENIZERS.get(str(pre.contents())) if pre else None
    if splits:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
        path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its progress bars and its advice for programmers kept off stderr."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def has_only_pickles(folder: Path) -> bool:
    """Whether the weights are `.bin` files with no safetensors beside them."""
    safe = (folder / SINGLE).exists() or (folder / INDEX).exists()
    return not safe and any(folder.glob("pytorch_model*.bin"))


def convert_pickles(folder: Path, cache_dir: Path, say: Say) -> Path:
    """A safetensors copy of a directory of `.bin` weights. Pickles with more than tensors are refused."""
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    others = sorted(p for pattern in ("*.json", "*.jinja", "*.txt", "*.py") for p in folder.glob(pattern))
    others = [path for path in others if not path.name.endswith(".bin.index.json")]
    digest = hashlib.sha256(json.dumps([(p.name, sha256_file(p)) for p in pickles + others]).encode()).hexdigest()
    target = cache_dir / "unpickled" / f"{folder.name}-{digest[:12]}-{_RECIPE}"
    with made_once(target) as scratch:
        if scratch is not None:
            say(f"converting {len(pickles)} pickle file(s) to safetensors (once)")
            _write_pickles(pickles, scratch)
            for path in others:
                shutil.copyfile(path, scratch / path.name)
    return target


def _write_pickles(pickles: list[Path], folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weight_map: dict[str, str] = {}
    for path in pickles:
        if error := impostor(path):
            raise error
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
            # Tied tensors share memory, which safetensors refuses: each gets its own.
            whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        except Exception as error:  # whatever a damaged or hostile pickle leads torch to raise
            first_line = str(error).strip().partition("\n")[0]
            raise CheckpointError(
                f"cannot be unpickled safely ({type(error).__name__}: {first_line})",
                where=str(path),
                fix="Use a safetensors checkpoint.",
                rule="checkpoint.pickle",
            ) from None
        name = path.name.replace("pytorch_model", "model").replace(".bin", ".safetensors")
        save_file(whole, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(whole, name))
    if set(weight_map.values()) != {SINGLE}:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
