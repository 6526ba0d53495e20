"""Types of numbers on a GPU: what a plan's `auto` means for activations and for the KV cache. Both GPU backends."""

from __future__ import annotations

from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

_NAMED = {"bf16": "bfloat16", "fp16": "float16"}
_WITH_FP8_CACHE = ("fp8", "nvfp4")


def gpu_dtype(plan: Plan, info: ModelInfo) -> str:
    """`bfloat16` or `float16`: the plan's, else the checkpoint's own; one in float32 is narrowed to float16.

    Raises PlanError for arithmetic in float32, which the attention kernels have not.
    """
    precision = plan.engine.precision
    if precision == "f32":
        raise PlanError(
            "f32 has no attention kernels in TensorRT-LLM", where="engine.precision", fix="Set it to `bf16` or `fp16`."
        )
    return _NAMED.get(precision) or ("bfloat16" if info.dtype == "bfloat16" else "float16")


def gpu_kv_dtype(plan: Plan, info: ModelInfo) -> str:
    """Type of the KV cache: `fp8`, `int8`, `nvfp4`, or the activations' own.

    Raises PlanError for one that differs from the activations without being a quantized one.
    """
    asked, dtype = plan.quantization.kv_cache, gpu_dtype(plan, info)
    if asked == "auto":
        with_fp8 = plan.quantization.format in _WITH_FP8_CACHE or _stored_with_fp8_cache(info)
        return "fp8" if with_fp8 else dtype
    if asked in ("fp8", "int8", "nvfp4"):
        return asked
    if _NAMED.get(asked) != dtype:
        raise PlanError(
            f"a KV cache in {asked} does not go with activations in {dtype}",
            where="quantization.kv_cache",
            fix="Set it to `auto`, `fp8` or `int8`.",
        )
    return dtype


def is_calibrated(plan: Plan, info: ModelInfo) -> bool:
    """Whether an engine's checkpoint comes from a calibration pass: its weights or its KV cache get scales from real
    activations."""
    quantization = plan.quantization
    scaled = quantization.format not in ("none", "int8") or quantization.kv_cache in ("fp8", "int8")
    return scaled and info.quantization is None


def _stored_with_fp8_cache(info: ModelInfo) -> bool:
    """Whether the checkpoint brings the scales of an fp8 cache, by ModelOpt's own file or by its config."""
    stored = info.quantization or {}
    return stored.get("kv_cache_quant_algo") == "FP8" or bool(stored.get("kv_cache_scheme"))
