"""From a Hugging Face checkpoint to TensorRT-LLM's own: which script, with which flags.

`quantize.py` calibrates with ModelOpt; a family's `convert_checkpoint.py` does 16 bits and int8 weights. Either way the
split over GPUs is decided here: rank files come out, one a GPU. Runs nothing.
"""

from __future__ import annotations

from pathlib import Path

from conch_build.compile.container import EXAMPLES
from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype, is_calibrated
from conch_build.compile.tensorrt.families import MEDUSA, MEDUSA_MODEL_TYPES, Family, check_format, family_of
from conch_build.errors import PlanError
from conch_build.families import linear_widths
from conch_build.files import read_json
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.sizing import group_sizes_for

QUANTIZE = f"{EXAMPLES}/quantization/quantize.py"

QFORMATS = {"none": "full_prec", "int8": "int8_wo"}
"""Formats that `quantize.py` calls otherwise than the plan does."""

AWQ_GROUP_SIZES = {"int4_awq": (128, 64), "w4a8_awq": (128,)}
"""Weights that may share a scale in TensorRT-LLM's kernels, the preferred first."""

AWQ_SAMPLES = 32
"""Texts that `quantize.py` reads at most for AWQ, whatever it is asked for."""

_MISREAD = {"mpt": "an MPT model", "vila": "a VILA model", "llava-onevision-qwen2": "a LLaVA model"}
"""Part of a path -> what `quantize.py` takes a checkpoint for that lies there."""

_STORED = {"FP8": "--use_fp8", "NVFP4": "--use_nvfp4"}
"""ModelOpt's formats that a converter takes as they are."""


def calibrates(plan: Plan, info: ModelInfo) -> bool:
    """Whether the plan needs `quantize.py`. Raises PlanError for a cache that engines have not."""
    if gpu_kv_dtype(plan, info) == "nvfp4":
        raise PlanError(
            "engines have no KV cache in nvfp4",
            where="quantization.kv_cache",
            fix="Set it to fp8, or `engine.backend: pytorch`.",
        )
    return is_calibrated(plan, info)


def quantize_argv(plan: Plan, info: ModelInfo, source: Path, texts: Path, out: Path) -> list[str]:
    """`quantize.py`; `texts`: directory of calibration data."""
    family_of(info.architecture)
    check_format(info.architecture, plan.quantization.format)
    check_path(source)
    form, calibration, parallel = plan.quantization.format, plan.quantization.calibration, plan.engine.parallel
    if parallel.expert > 1:
        raise PlanError(
            f"quantize.py splits experts by their rows, not into {parallel.expert} groups of whole ones",
            where="engine.parallel.expert",
            fix="Set it to 1, or quantize nothing.",
        )
    if plan.engine.speculation.method == "medusa":
        raise PlanError(
            "Medusa heads stay in 16 bits, and their converter calibrates nothing",
            where="quantization",
            fix="Set `format` to none or int8 and `kv_cache: auto`.",
        )
    if calibration.data == "self":
        raise PlanError(
            "quantize.py reads texts, and cannot let the model write its own",
            where="quantization.calibration.data",
            fix="Use `builtin` or a file.",
        )
    argv = ["python3", QUANTIZE, "--model_dir", str(source), "--output_dir", str(out)]
    argv += ["--dtype", gpu_dtype(plan, info), "--qformat", QFORMATS.get(form, form)]
    if (kv := gpu_kv_dtype(plan, info)) in ("fp8", "int8"):
        argv += ["--kv_cache_dtype", kv]
    if form in AWQ_GROUP_SIZES:
        argv += ["--awq_block_size", str(awq_group_size(plan, info))]
    argv += ["--calib_dataset", str(texts), "--calib_size", str(samples_of(plan))]
    argv += ["--calib_max_seq_length", str(calibration.max_length)]
    return [*argv, "--tp_size", str(parallel.tensor), "--pp_size", str(parallel.pipeline)]


def samples_of(plan: Plan) -> int:
    """Calibration texts that are read."""
    samples = plan.quantization.calibration.samples
    return min(samples, AWQ_SAMPLES) if plan.quantization.format in AWQ_GROUP_SIZES else samples


def check_path(source: Path) -> None:
    """Raises PlanError for a checkpoint that `quantize.py` takes for another model, by the name of its path alone."""
    for part, other in _MISREAD.items():
        if part in str(source):
            raise PlanError(
                f"quantize.py takes a checkpoint for {other} when its path has `{part}` in it, as {source}",
                where="model.checkpoint",
                fix="Move it to a path without.",
            )


def convert_argv(plan: Plan, info: ModelInfo, source: Path, out: Path) -> list[str]:
    """The family's `convert_checkpoint.py`."""
    if plan.engine.speculation.method == "medusa":
        return _medusa_argv(plan, info, source, out)
    family, parallel = family_of(info.architecture), plan.engine.parallel
    if info.quantization is None:
        check_format(info.architecture, plan.quantization.format)
    _splits(family, plan)
    dtype = gpu_dtype(plan, info)
    if family.name == "gemma":
        argv = ["python3", family.converter, "--ckpt-type", "hf", "--model-dir", str(source)]
        argv += ["--output-model-dir", str(out), "--dtype", dtype, "--world-size", str(parallel.tensor)]
        return argv + _weight_only(plan)
    argv = ["python3", family.converter, "--model_dir", str(source), "--output_dir", str(out), "--dtype", dtype]
    argv += ["--tp_size", str(parallel.tensor)]
    argv += ["--pp_size", str(parallel.pipeline)] if family.pipeline else []
    if parallel.expert > 1:
        argv += ["--moe_tp_size", str(parallel.tensor // parallel.expert), "--moe_ep_size", str(parallel.expert)]
    argv += _stored(family, plan, info) if info.quantization is not None else _weight_only(plan)
    return [*argv, "--workers", str(parallel.tensor * parallel.pipeline)]


def converter_name(plan: Plan, info: ModelInfo) -> str:
    """The converter as version profiles name it: its family's own."""
    family = MEDUSA if plan.engine.speculation.method == "medusa" else family_of(info.architecture)
    return f"{family.name}/convert_checkpoint.py"


def awq_group_size(plan: Plan, info: ModelInfo) -> int:
    """Weights that share a scale: the plan's, or the largest that divides each width on each GPU."""
    form, workers = plan.quantization.format, plan.serving.disaggregated
    split_over = (workers.context.tensor, workers.generation.tensor) if workers else (plan.engine.parallel.tensor,)
    # What comes out of attention and of the MLP's middle is split over GPUs where it goes in.
    split = ("o_proj", "down_proj", "w2")
    own = [
        width // tensor if any(part in name.split(", ") for part in split) else width
        for name, width in linear_widths(info).items()
        for tensor in split_over
    ]
    fitting = group_sizes_for(own, AWQ_GROUP_SIZES[form])
    asked = plan.quantization.group_size
    if asked == "auto" and fitting:
        return fitting[0]
    if asked in fitting:
        return int(asked)
    sizes, inputs = " or ".join(map(str, AWQ_GROUP_SIZES[form])), ", ".join(map(str, sorted(set(own))))
    raise PlanError(
        f"groups of {sizes if asked == 'auto' else asked} weights do not fit: {form} has kernels for {sizes}, and its "
        f"layers have {inputs} inputs a GPU",
        where="quantization.group_size",
        fix=f"Set it to {fitting[0]}." if fitting else "Lower `engine.parallel.tensor`, or take another format.",
    )


def _weight_only(plan: Plan) -> list[str]:
    return ["--use_weight_only", "--weight_only_precision", "int8"] if plan.quantization.format == "int8" else []


def _stored(family: Family, plan: Plan, info: ModelInfo) -> list[str]:
    """Flags for a checkpoint that comes quantized."""
    stored = info.quantization or {}
    algorithm = str(stored.get("quant_algo") or stored.get("quant_method"))
    if not family.calibrated or algorithm not in _STORED:
        raise PlanError(
            f"is quantized already ({algorithm}), in a form that {family.name}'s converter does not take",
            where=plan.model.checkpoint,
            fix="Name the checkpoint it was made from and set `quantization.format`, or `engine.backend: pytorch`.",
        )
    cache = ["--fp8_kv_cache"] if gpu_kv_dtype(plan, info) == "fp8" else []
    return [_STORED[algorithm], *cache]


def _splits(family: Family, plan: Plan) -> None:
    """Raises PlanError for a split over GPUs that the converter cannot make."""
    parallel = plan.engine.parallel
    if parallel.pipeline > 1 and not family.pipeline:
        raise PlanError(
            f"{family.name}'s converter cannot split layers over {parallel.pipeline} GPUs",
            where="engine.parallel.pipeline",
            fix="Set it to 1 and use `engine.parallel.tensor`.",
        )
    if parallel.expert > 1 and not family.experts:
        raise PlanError(f"{family.name} has no experts to spread", where="engine.parallel.expert", fix="Set it to 1.")
    if parallel.tensor % parallel.expert:
        raise PlanError(
            f"{parallel.expert} does not divide the {parallel.tensor} GPUs of `engine.parallel.tensor`",
            where="engine.parallel.expert",
            fix="Set it to a divisor.",
        )


def _medusa_argv(plan: Plan, info: ModelInfo, source: Path, out: Path) -> list[str]:
    speculation, parallel = plan.engine.speculation, plan.engine.parallel
    where = "engine.speculation"
    if info.architecture not in MEDUSA_MODEL_TYPES:
        known = ", ".join(MEDUSA_MODEL_TYPES)
        raise PlanError(f"no Medusa for {info.architecture}; only {known}", where=where, fix="Use method `draft`.")
    if info.rope["scaling"]:
        raise PlanError(
            "the Medusa converter drops the factors of the model's rope scaling: long answers would be nonsense",
            where=where,
            fix="Use method `draft`.",
        )
    if speculation.checkpoint is None:
        raise PlanError("does not say where the Medusa heads are", where=f"{where}.checkpoint", fix="Name them.")
    _splits(MEDUSA, plan)
    heads = read_json(Path(speculation.checkpoint) / "config.json")
    argv = ["python3", MEDUSA.converter, "--model_dir", str(source), "--output_dir", str(out)]
    argv += ["--model_type", MEDUSA_MODEL_TYPES[info.architecture], "--dtype", gpu_dtype(plan, info)]
    argv += ["--tp_size", str(parallel.tensor), "--pp_size", str(parallel.pipeline)]
    argv += ["--medusa_model_dir", speculation.checkpoint]
    argv += ["--num_medusa_heads", str(heads.get("medusa_num_heads", 4))]
    argv += ["--num_medusa_layers", str(heads.get("medusa_num_layers", 1))]
    argv += ["--max_medusa_token_len", str(speculation.max_draft_len)]
    return argv + _weight_only(plan) + ["--workers", str(parallel.tensor * parallel.pipeline)]
