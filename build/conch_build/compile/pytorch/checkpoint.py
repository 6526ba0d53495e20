"""How a checkpoint gets into the form that the LLM API loads: ModelOpt's unified Hugging Face checkpoint.

    none, fp8, int4_awq   Conch's own `quantize`, on any machine
    nvfp4, w4a8_awq       ModelOpt's `hf_ptq.py` in TensorRT-LLM's image, on a GPU
    quantized already     as it is

Says which commands that takes, and runs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.compile.precision import gpu_kv_dtype
from conch_build.compile.tensorrt.checkpoint import AWQ_GROUP_SIZES, awq_group_size
from conch_build.compile.tensorrt.recipe import tools_image
from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Calibration, Plan
from conch_build.profiles import Profile
from conch_build.recipe import Command

ON_THIS_MACHINE = ("none", "fp8", "int4_awq")
ON_A_GPU = ("nvfp4", "w4a8_awq")
TEXTS = "cnn_dailymail"
"""What `hf_ptq.py` calibrates with: it would mix in a data set that is only for those who signed for it."""
_MAX_LENGTH = 512
"""Tokens of a sample, where it cannot be told how many."""
MODELOPT = "https://github.com/NVIDIA/Model-Optimizer"


def quantizes_here(plan: Plan, info: ModelInfo) -> bool:
    """Whether Conch makes the checkpoint itself. Raises PlanError for a format that the LLM API has no kernels for."""
    form = plan.quantization.format
    if info.quantization is not None or form in ON_THIS_MACHINE:
        return True
    if form in ON_A_GPU:
        return False
    raise PlanError(
        f"the LLM API has no kernels for {form}",
        where="quantization.format",
        fix=f"Use {', '.join((*ON_THIS_MACHINE, *ON_A_GPU))}, or set `engine.backend: tensorrt`.",
    )


def checkpoint_commands(plan: Plan, info: ModelInfo, profile: Profile, source: Path, out: Path) -> Iterator[Command]:
    """The commands that put the checkpoint to be served into the directory `out`."""
    _check_cache(plan, info)
    if quantizes_here(plan, info):
        yield Command(_title(plan, info, source), tuple(quantize_argv(plan, info, source, out)))
        return
    scripts = out.parent / "model-optimizer"
    clone = ("git", "clone", "--depth", "1", "--branch", profile.modelopt, MODELOPT, str(scripts))
    yield Command(f"scripts of ModelOpt {profile.modelopt}", clone)
    argv = hf_ptq_argv(plan, info, profile, source, scripts, out)
    yield Command(_title(plan, info, source), tuple(argv), image=tools_image(plan, profile))


def quantize_argv(plan: Plan, info: ModelInfo, source: Path, out: Path) -> list[str]:
    """Conch's own quantization, as a program."""
    form = "none" if info.quantization is not None else plan.quantization.format
    argv = ["python3", "-m", "conch_build.compile.pytorch.quantize", str(source), str(out), "--format", form]
    if form == "int4_awq":
        argv += ["--group-size", str(awq_group_size(plan, info))]
    if form != "none":
        calibration = plan.quantization.calibration
        argv += ["--data", calibration.data, "--samples", str(calibration.samples)]
        argv += ["--max-length", str(calibration.max_length)]
    return argv + (["--trust-remote-code"] if plan.model.trust_remote_code else [])


def hf_ptq_argv(plan: Plan, info: ModelInfo, profile: Profile, source: Path, scripts: Path, out: Path) -> list[str]:
    """ModelOpt's `hf_ptq.py`, which calibrates with data sets of its own. Raises PlanError for flags it has not."""
    calibration, form = plan.quantization.calibration, plan.quantization.format
    if calibration.data != "builtin":
        raise PlanError(
            f"{form} is quantized by ModelOpt's hf_ptq.py, which calibrates with its own data sets",
            where="quantization.calibration.data",
            fix="Leave it out, or use a format that is quantized on this machine: fp8 or int4_awq.",
        )
    argv = ["python3", str(scripts / profile.modelopt_script), "--pyt_ckpt_path", str(source)]
    argv += ["--export_path", str(out), "--qformat", profile.qformats[form]]
    kv = gpu_kv_dtype(plan, info)
    argv += ["--kv_cache_qformat", profile.kv_qformats.get(kv, "none")]
    argv += ["--dataset", TEXTS, "--calib_size", str(calibration.samples)]
    argv += _sample_length(calibration, profile)
    if form in AWQ_GROUP_SIZES:
        argv += ["--awq_block_size", str(awq_group_size(plan, info))]
    argv += ["--trust_remote_code"] if plan.model.trust_remote_code else []
    if problems := profile.flag_problems("hf_ptq.py", argv[2:]):
        what = f"ModelOpt {profile.modelopt} does not take this hf_ptq.py: {'; '.join(problems)}"
        raise PlanError(what, where="plan")
    return argv


def _sample_length(calibration: Calibration, profile: Profile) -> list[str]:
    if any(flag.name == "--calib_seq" for flag in profile.flags_of("hf_ptq.py")):
        return ["--calib_seq", str(calibration.max_length)]
    if calibration.max_length != _MAX_LENGTH:
        raise PlanError(
            f"hf_ptq.py of ModelOpt {profile.modelopt} reads {_MAX_LENGTH} tokens of each sample, no other number",
            where="quantization.calibration.max_length",
            fix=f"Leave it out, or set it to {_MAX_LENGTH}.",
        )
    return []


def _check_cache(plan: Plan, info: ModelInfo) -> None:
    if gpu_kv_dtype(plan, info) == "nvfp4" and plan.quantization.format != "nvfp4" and info.quantization is None:
        raise PlanError(
            f"a KV cache in nvfp4 gets its scales beside nvfp4 weights, and these are {plan.quantization.format}",
            where="quantization.kv_cache",
            fix="Set it to `fp8`, or `quantization.format: nvfp4`.",
        )


def _title(plan: Plan, info: ModelInfo, source: Path) -> str:
    if info.quantization is not None or plan.quantization.format == "none":
        return f"{source.name} as it is"
    return f"quantize {source.name} to {plan.quantization.format}"
