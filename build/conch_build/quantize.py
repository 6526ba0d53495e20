"""A checkpoint quantized by NVIDIA ModelOpt into a unified Hugging Face checkpoint, on a CPU.

`quantized.py` says what is in the result. Formats that calibrate are loaded in float32 (4 bytes a parameter),
which is faster there than bf16 and keeps amax exact. The same inputs give the same files.
Knows nothing of engines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from conch_build.calibration import calibration_samples
from conch_build.console import Progress
from conch_build.errors import BuildError
from conch_build.extras import require
from conch_build.families import linear_widths
from conch_build.files import sha256_file
from conch_build.model_info import ModelInfo
from conch_build.plan import Quantization
from conch_build.quantized import QUANTIZED_HEAD, check_export
from conch_build.quiet import quiet
from conch_build.sizing import GROUP_SIZES, group_sizes_for

Say = Callable[[str], None]

CALIBRATION_BATCH = 16
_SEED = 0

_CONFIGS = {
    "int8": "INT8_WEIGHT_ONLY_CFG",
    "int8_sq": "INT8_SMOOTHQUANT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "fp8": "FP8_DEFAULT_CFG",
}
_WITH_HEAD = ("int8", "int4_awq")
"""Formats that get an 8-bit lm_head: their engines multiply by it as they do by the other layers."""

_REFUSED = {
    "nvfp4": "needs CUDA: ModelOpt packs its 4-bit floats with CUDA kernels",
    "w4a8_awq": "runs only in TensorRT-LLM's GPU kernels",
}
_PASSES: dict[str, tuple[int, ...]] = {"int8": (), "int8_sq": (1,), "fp8": (1,), "int4_awq": (1, 12)}
"""Cost of each pass over the calibration batches, in forward passes: AWQ's second tries eleven scalings."""


def quantize(
    source: Path,
    out: Path,
    settings: Quantization,
    info: ModelInfo,
    *,
    trust_remote_code: bool = False,
    log: Path | None = None,
    say: Say = lambda text: None,
) -> None:
    """Write the quantized checkpoint of `source` into the folder `out`.

    `log` takes what the libraries print (None: stderr). Raises BuildError or SetupError.
    """
    if settings.format == "none":
        _link_files(source, out)
        if (source / QUANTIZED_HEAD).is_file():  # a checkpoint of our own comes back
            (out / QUANTIZED_HEAD).parent.mkdir()
            _link(source / QUANTIZED_HEAD, out / QUANTIZED_HEAD)
        return
    if settings.format not in _CONFIGS:
        raise BuildError(
            f"{settings.format} {_REFUSED[settings.format]}",
            where="quantization.format",
            fix=f"Use one of {', '.join(_CONFIGS)} or none.",
        )
    with quiet(log):
        torch = _import_torch()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(_SEED)
        stored_dtype = getattr(torch, info.dtype)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32 if _PASSES[settings.format] else stored_dtype,
            trust_remote_code=trust_remote_code,
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    _calibrate(model, tokenizer, settings, info, log, say)
    with quiet(log):
        _store_as(model, stored_dtype)
        if settings.format in _WITH_HEAD:
            _write_head(model.lm_head.weight.data, out / QUANTIZED_HEAD)
        _export(model, out)
    _link_files(source, out, weights=False)
    check_export(out, settings.format, info)


def calibrates(quant_format: str) -> bool:
    """Whether a format reads calibration samples."""
    return bool(_PASSES.get(quant_format))


def deciding_settings(settings: Quantization) -> dict[str, Any]:
    """The part of the plan that decides the result: not every format calibrates, only int4 has groups."""
    deciding: dict[str, Any] = {"format": settings.format}
    if settings.format == "int4_awq":
        deciding["group_size"] = settings.group_size
    if calibrates(settings.format):
        calibration = settings.calibration
        deciding["calibration"] = calibration.model_dump()
        if Path(calibration.data).is_file():
            deciding["calibration"]["data"] = sha256_file(Path(calibration.data))
    return deciding


def group_size(settings: Quantization, info: ModelInfo) -> int:
    """The int4 group size: as asked, or the largest that fits.

    Raises BuildError when it does not divide the input width of every layer.
    """
    widths = linear_widths(info)
    sizes = GROUP_SIZES if settings.group_size == "auto" else (settings.group_size,)
    fitting = group_sizes_for(widths.values(), sizes)
    if fitting:
        return fitting[0]
    others = ", ".join(map(str, group_sizes_for(widths.values())))
    named = "; ".join(f"{name}: {width}" for name, width in widths.items())
    raise BuildError(
        f"groups of {' or '.join(map(str, sizes))} do not divide every layer's input width ({named})",
        where="quantization.group_size",
        fix=f"Sizes that fit: {others}." if others else "Use int8 or int8_sq.",
    )


def _import_torch() -> Any:
    require("quantizing", "build", "torch", "modelopt")
    import torch

    return torch


def _calibrate(model: Any, tokenizer: Any, settings: Quantization, info: ModelInfo, log: Path | None, say: Say) -> None:
    """Put ModelOpt's quantizers into `model` and let them see the calibration samples."""
    import modelopt.torch.quantization as mtq
    import torch

    config = _config(settings, info, say)
    passes = _PASSES[settings.format]
    if not passes:
        with quiet(log):
            mtq.quantize(model, config, None)
        return
    samples = calibration_samples(settings.calibration, tokenizer, model, seed=_SEED)
    say(f"calibrating with {len(samples)} samples, {sum(map(len, samples)):,} tokens")
    batches = list(_batches(samples))
    costs = iter(passes)

    with Progress("calibrating", len(batches) * sum(passes)) as progress:

        def forward(quantized: Any) -> None:
            cost = next(costs, 0)
            with torch.no_grad():
                for batch in batches:
                    quantized(input_ids=batch, use_cache=False, logits_to_keep=1)
                    progress.advance(cost)

        with quiet(log):
            mtq.quantize(model, config, forward)


def _config(settings: Quantization, info: ModelInfo, say: Say) -> dict[str, Any]:
    """ModelOpt's configuration of the format, with the group size put in."""
    import modelopt.torch.quantization as mtq

    config: dict[str, Any] = deepcopy(getattr(mtq, _CONFIGS[settings.format]))
    if settings.format == "int4_awq":
        size = group_size(settings, info)
        widths = sorted(set(linear_widths(info).values()))
        say(f"int4 group size {size}: it divides the layer widths {', '.join(map(str, widths))}")
        for entry in config["quant_cfg"]:
            if "block_sizes" in (entry.get("cfg") or {}):
                entry["cfg"]["block_sizes"][-1] = size
    return config


def _batches(samples: list[Any]) -> Iterator[Any]:
    """Rows of equal length: neighbours by length, cut to the shortest. Padding would count as activations."""
    import torch

    ordered = sorted(samples, key=len)
    for start in range(0, len(ordered), CALIBRATION_BATCH):
        rows = ordered[start : start + CALIBRATION_BATCH]
        yield torch.stack([row[: len(rows[0])] for row in rows])


def _store_as(model: Any, dtype: Any) -> None:
    """Weights and activation scalings in the checkpoint's own dtype; amax and rotary tables stay float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    for name, buffer in model.named_buffers():
        if name.endswith("_pre_quant_scale"):
            buffer.data = buffer.data.to(dtype)
    model.config.dtype = dtype


def _write_head(weight: Any, path: Path) -> None:
    """lm_head in 8 bits, a scale for each token of the vocabulary: amax / 127, as ModelOpt's int8 has it."""
    import torch
    from safetensors.torch import save_file

    weight = weight.float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    values = (weight / scale[:, None]).round().clamp(-128, 127).to(torch.int8)
    path.parent.mkdir(parents=True)
    save_file({"lm_head.weight": values, "lm_head.weight_scale": scale}, path)


def _export(model: Any, out: Path) -> None:
    from modelopt.torch.export import export_hf_checkpoint

    try:
        export_hf_checkpoint(model, export_dir=out)
    except OSError:
        raise  # a full disk is the store's to tell
    except Exception as error:
        raise BuildError(
            f"ModelOpt could not export the model ({type(error).__name__}: {error})",
            where="quantization",
            fix="Run the build with --verbose for its own messages.",
        ) from error


def _link_files(source: Path, out: Path, *, weights: bool = True) -> None:
    """The checkpoint's own files beside each other: hard links where the disk allows it, else copies."""
    for path in sorted(source.iterdir()):
        is_weight = path.suffix in (".safetensors", ".bin", ".gguf") or path.name.endswith(".index.json")
        target = out / path.name
        if not path.is_file() or path.name.startswith(".") or (is_weight and not weights):
            continue
        if path.name == "config.json" and not weights:
            continue  # the export's own says how it is quantized
        target.unlink(missing_ok=True)
        _link(path, target)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
