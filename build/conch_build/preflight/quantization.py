"""Rules about quantization: formats, group sizes, checkpoints that are quantized already."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.compile.openvino.layouts import method_of
from conch_build.families import linear_widths
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import Violation, rule
from conch_build.sizing import GROUP_SIZES, group_sizes_for

_FOR_CPU = "Use int8, int8_sq, int4_awq, fp8 or none."


@rule("quant.nvfp4-needs-cuda")
def _nvfp4_needs_cuda(plan: Plan) -> Iterator[Violation]:
    if plan.quantization.format == "nvfp4":
        yield Violation(
            "quantization.format",
            "nvfp4 needs CUDA: ModelOpt packs its 4-bit floats with CUDA kernels, and no CPU can run them",
            _FOR_CPU,
        )


@rule("quant.format-unavailable")
def _no_w4a8_on_cpu(plan: Plan) -> Iterator[Violation]:
    if plan.engine.backend == "openvino" and plan.quantization.format == "w4a8_awq":
        yield Violation(
            "quantization.format",
            "w4a8_awq (4-bit weights, fp8 activations) runs only in TensorRT-LLM's GPU kernels",
            _FOR_CPU,
        )


@rule("quant.experts")
def _experts_in_8_bits_only(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    if info.num_experts and plan.quantization.format not in ("none", "int8"):
        yield Violation(
            "quantization.format",
            f"{plan.quantization.format} scales what goes into each of the {info.num_experts} experts, for which no "
            "CPU kernel exists",
            "Use int8 or none.",
        )


@rule("quant.group-size")
def _group_size_divides_widths(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    asked = plan.quantization.group_size
    if plan.quantization.format != "int4_awq":
        return
    widths = linear_widths(info)
    fitting = group_sizes_for(widths.values())
    if asked == "auto":
        if fitting:
            return
        message = f"none of the group sizes {_listed(GROUP_SIZES)} divides every layer's input width"
    elif group_sizes_for(widths.values(), [asked]):
        return
    else:
        message = f"groups of {asked} do not divide every layer's input width"
    bad = {name: width for name, width in widths.items() if asked == "auto" or width % asked}
    sizes = f"Sizes that fit: {_listed(fitting)}." if fitting else "Use int8 or int8_sq."
    yield Violation(
        "quantization.group_size",
        f"{message} ({'; '.join(f'{name}: {width}' for name, width in bad.items())})",
        sizes,
    )


@rule("quant.already-quantized")
def _not_quantized_twice(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    if info.quantization is None:
        return
    if plan.quantization.format != "none":
        yield Violation(
            "quantization.format",
            f"the checkpoint is quantized already ({method_of(info.quantization)}); {plan.quantization.format} on top "
            "would lose accuracy",
            "Set it to `none`, which compiles the checkpoint as it is, or name the original checkpoint.",
        )
    if info.num_experts and info.quantization.get("quant_algo") != "W8A16":
        yield Violation(
            "model.checkpoint",
            f"its {info.num_experts} experts are quantized already ({method_of(info.quantization)}), which cannot be "
            "compiled",
            "Name the original checkpoint; `quantization.format: int8` quantizes it.",
        )


@rule("quant.kv-scales")
def _kv_cache_is_the_plans(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    quantization = info.quantization or {}
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if quantization.get(key):
            yield Violation(
                "model.checkpoint",
                f"its scales for a quantized KV cache (`{key}`) are not used: the CPU's cache scales each token itself",
                "Nothing to do; `quantization.kv_cache` chooses the cache's type.",
                "warning",
            )


def _listed(sizes: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
