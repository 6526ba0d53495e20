"""Rules about quantization: formats, group sizes, checkpoints that are quantized already."""

from __future__ import annotations

from collections.abc import Iterator

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
    method = info.quantization.get("quant_method") or info.quantization.get("quant_algo") or "unknown method"
    if plan.quantization.format != "none":
        yield Violation(
            "model.checkpoint",
            f"it is quantized already ({method}); {plan.quantization.format} on top would lose accuracy",
            "Name the original checkpoint.",
        )
    else:
        yield Violation(
            "model.checkpoint",
            f"it is quantized already ({method}), which this version cannot compile",
            "Name the original checkpoint and let `quantization.format` quantize it.",
        )


def _listed(sizes: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
