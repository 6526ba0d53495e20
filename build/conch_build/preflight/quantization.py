"""Rules about quantization: formats, group sizes, checkpoints that are quantized already."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.compile.openvino.layouts import method_of
from conch_build.families import linear_widths
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import CPU, Violation, rule
from conch_build.sizing import GROUP_SIZES, group_sizes_for

_FOR_CPU = "Use int8, int8_sq, int4_awq, fp8 or none."


@rule("quant.nvfp4-needs-cuda", on=CPU)
def _nvfp4_needs_cuda(plan: Plan) -> Iterator[Violation]:
    """ModelOpt packs nvfp4 with CUDA kernels, and no CPU multiplies it."""
    if plan.quantization.format == "nvfp4":
        yield Violation(
            "quantization.format",
            "nvfp4 needs CUDA: ModelOpt packs its 4-bit floats with CUDA kernels, and no CPU can run them",
            _FOR_CPU,
        )


@rule("quant.format-unavailable", on=CPU)
def _no_w4a8_on_cpu(plan: Plan) -> Iterator[Violation]:
    """w4a8_awq exists in TensorRT-LLM's kernels alone, and those are for GPUs."""
    if plan.quantization.format == "w4a8_awq":
        yield Violation(
            "quantization.format",
            "w4a8_awq (4-bit weights, fp8 activations) runs only in TensorRT-LLM's GPU kernels",
            _FOR_CPU,
        )


@rule("quant.experts", on=CPU)
def _experts_in_8_bits_only(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The CPU multiplies a mixture's experts in 16 or in 8 bits only."""
    if info.num_experts and plan.quantization.format not in ("none", "int8"):
        yield Violation(
            "quantization.format",
            f"{plan.quantization.format} scales what goes into each of the {info.num_experts} experts, for which no "
            "CPU kernel exists",
            "Use int8 or none.",
        )


@rule("quant.group-size", on=CPU, references=("NVIDIA/Model-Optimizer#2320", "NVIDIA/Model-Optimizer#23"))
def _group_size_divides_widths(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Weights that share a 4-bit scale lie side by side in a row: the group must divide each row's length."""
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
    """The checkpoint comes quantized. Quantizing what was rounded before rounds twice, and some layers have no kernel
    for what they were stored in."""
    if info.quantization is None:
        return
    if plan.quantization.format != "none":
        yield Violation(
            "quantization.format",
            f"the checkpoint is quantized already ({_named(info)}); {plan.quantization.format} on top "
            "would lose accuracy",
            "Set it to `none`, which takes the checkpoint as it is, or name the original checkpoint.",
        )
    on_cpu = plan.engine.backend == "openvino"
    if on_cpu and info.num_experts and info.quantization.get("quant_algo") != "W8A16":
        yield Violation(
            "model.checkpoint",
            f"its {info.num_experts} experts are quantized already ({_named(info)}), which cannot be compiled",
            "Name the original checkpoint; `quantization.format: int8` quantizes it.",
        )


@rule("quant.kv-scales", on=CPU, severity="warning")
def _kv_cache_is_the_plans(info: ModelInfo) -> Iterator[Violation]:
    """Scales of a quantized KV cache that the checkpoint brings are for GPUs; the CPU's cache scales each token."""
    quantization = info.quantization or {}
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if quantization.get(key):
            yield Violation(
                "model.checkpoint",
                f"its scales for a quantized KV cache (`{key}`) are not used: the CPU's cache scales each token itself",
                "Nothing to do; `quantization.kv_cache` chooses the cache's type.",
                "warning",
            )


def _named(info: ModelInfo) -> str:
    return method_of(info.quantization or {})


def _listed(sizes: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
