"""Rules about number formats on GPUs: which weights and which KV cache a GPU and a backend have kernels for.

The tables are TensorRT-LLM's support matrices and ModelOpt's: docs/source/features/quantization.md of the one,
examples/llm_ptq/README.md of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conch_build.checkpoint import Checkpoint
from conch_build.compile.precision import gpu_kv_dtype, is_calibrated
from conch_build.compile.tensorrt.checkpoint import AWQ_GROUP_SIZES, awq_group_size, check_path
from conch_build.compile.tensorrt.families import check_format
from conch_build.compile.tensorrt.flags import needs_paged_context, reads_paged
from conch_build.errors import CheckpointError
from conch_build.gpu.cards import Gpu
from conch_build.gpu.memory import GpuMemory
from conch_build.gpu.storage import stored_format
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import ENGINE, GPU, LLM_API, Violation, rule
from conch_build.preflight.target import lacks
from conch_build.profiles import Profile
from conch_build.weights import read_weights

_AMPERE, _ADA, _HOPPER, _BLACKWELL = 80, 89, 90, 100
_NAMES = {_AMPERE: "Ampere (A100)", _ADA: "Ada (L4, L40S)", _HOPPER: "Hopper (H100)", _BLACKWELL: "Blackwell (B200)"}


@dataclass(frozen=True)
class Kernels:
    """GPUs, by compute capability, that multiply a format; both ends belong to it, None: no end."""

    first: int
    last: int | None = None

    def run_on(self, sm: int) -> bool:
        return self.first <= sm and (self.last is None or sm <= self.last)


KERNELS: Mapping[str, Mapping[str, Kernels]] = {
    "tensorrt": {
        "none": Kernels(_AMPERE),
        "int8": Kernels(_AMPERE, _HOPPER),
        "int8_sq": Kernels(_AMPERE, _HOPPER),
        "int4_awq": Kernels(_AMPERE, _HOPPER),
        "int4_gptq": Kernels(_AMPERE, _HOPPER),
        "w4a8_awq": Kernels(_ADA, _HOPPER),
        "fp8": Kernels(_ADA),
        "nvfp4": Kernels(_BLACKWELL, 109),
    },
    "pytorch": {
        "none": Kernels(_AMPERE),
        "int4_awq": Kernels(_AMPERE, _HOPPER),
        "int4_gptq": Kernels(_AMPERE, _HOPPER),
        "w4a8_awq": Kernels(_ADA, _HOPPER),
        "fp8": Kernels(_ADA),
        "fp8_blocks": Kernels(_HOPPER, 109),
        "mxfp4": Kernels(_HOPPER),
        "nvfp4": Kernels(_BLACKWELL),
    },
}
"""Backend -> format -> the GPUs that have kernels for it."""

NO_EXPERTS = ("int4_awq", "int4_gptq")
"""Formats without kernels of the LLM API for a mixture's experts: it multiplies their 4-bit integers by fp8."""

_FP8_REFERENCES = (
    "NVIDIA/TensorRT-LLM#2602",
    "NVIDIA/TensorRT-LLM#3554",
    "NVIDIA/TensorRT-LLM#8572",
    "NVIDIA/TensorRT-LLM#2112",
    "NVIDIA/Model-Optimizer#500",
    "NVIDIA/Model-Optimizer#187",
)


@rule("precision.backend", on=GPU)
def _backend_has_the_format(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """Each backend has formats of its own for weights and for the KV cache: int8 and SmoothQuant are engines', an nvfp4
    cache is the LLM API's."""
    yield from lacks(plan, profile, "quantization.format", "quantization.kv_cache")


@rule("precision.format", on=GPU)
def _gpu_multiplies_the_format(plan: Plan, gpu: Gpu) -> Iterator[Violation]:
    """Each weight format has kernels on some GPUs and in some backends: fp8 from Ada on, nvfp4 on Blackwell, w4a8_awq
    on Ada and Hopper, 8- and 4-bit integers up to Hopper: `trtllm-build` refuses them on Blackwell."""
    if plan.quantization.format in KERNELS[plan.engine.backend]:
        yield from _format_violations(plan.quantization.format, plan, gpu, "quantization.format")


@rule("precision.family", on=ENGINE, references=("NVIDIA/TensorRT-LLM#1580", "NVIDIA/TensorRT-LLM#10739"))
def _engines_of_the_family_have_the_format(plan: Plan, info: ModelInfo) -> None:
    """Not every family has engines in every format: experts have none in AWQ and SmoothQuant, Qwen3 in fp8 and nvfp4
    alone. Others fail in `trtllm-build`, or answer with garbage."""
    if info.quantization is None:
        check_format(info.architecture, plan.quantization.format)


@rule("precision.path", on=ENGINE)
def _path_names_no_other_model(plan: Plan, checkpoint: Checkpoint) -> None:
    """TensorRT-LLM's `quantize.py` tells some models by their path: one with `mpt` in it, as in `prompts`, is loaded as
    MPT whatever lies there."""
    if is_calibrated(plan, checkpoint.info):
        check_path(checkpoint.path)


@rule("precision.stored-format", on=GPU)
def _gpu_multiplies_the_stored_format(plan: Plan, info: ModelInfo, gpu: Gpu) -> Iterator[Violation]:
    """The same for a checkpoint that comes quantized: its format must have kernels on the GPU, in the backend."""
    form = stored_format(info.quantization) if info.quantization else None
    if form is not None:
        yield from _format_violations(form, plan, gpu, "model.checkpoint")


@rule(
    "precision.stored-method",
    on=LLM_API,
    references=("NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_utils.py",),
)
def _llm_api_reads_the_stored_method(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The LLM API reads checkpoints that ModelOpt quantized, and few others. One in a way that it does not know ends
    with `Unsupported quantization_config` when the model is loaded, on the GPU."""
    stored = info.quantization
    if stored is None or stored_format(stored) is not None:
        return
    told = str(stored.get("quant_algo") or stored.get("quant_method") or "an unnamed method")[:40]
    later = stored.get("quant_method") == "compressed-tensors"
    yield Violation(
        "model.checkpoint",
        f"it is quantized by {told}, "
        + ("which only some releases of the LLM API read" if later else "which the LLM API does not read"),
        "Name the checkpoint it was made from and set `quantization.format`.",
        "warning" if later else "error",
    )


@rule("precision.experts", on=LLM_API, references=("NVIDIA/TensorRT-LLM tensorrt_llm/_torch/modules/fused_moe",))
def _experts_have_kernels(plan: Plan, info: ModelInfo, gpu: Gpu) -> Iterator[Violation]:
    """A mixture's experts are multiplied by kernels of their own, which not every format has. The LLM API takes experts
    in 4-bit integers for w4a8_awq ones: it fails on the GPU, or on scales that are not there."""
    stored = stored_format(info.quantization) if info.quantization else None
    form = stored or plan.quantization.format
    if info.num_experts and form in NO_EXPERTS and KERNELS["pytorch"][form].run_on(gpu.sm):
        usable = [name for name in _usable(plan.engine.backend, gpu) if name not in NO_EXPERTS]
        yield Violation(
            "model.checkpoint" if stored else "quantization.format",
            f"the LLM API has no kernels for experts in {form}",
            f"For experts {gpu.label} has {', '.join(usable)}.",
        )


@rule("precision.kv-cache", on=GPU)
def _gpu_caches_in_the_type(plan: Plan, gpu: Gpu, memory: GpuMemory) -> Iterator[Violation]:
    """A KV cache in nvfp4 needs Blackwell; one in fp8 runs on every GPU with the LLM API, and from Ada on in engines.
    Otherwise it has the type of the activations."""
    dtype, where, backend = memory.kv_dtype, "quantization.kv_cache", plan.engine.backend
    if dtype == "nvfp4" and gpu.sm < _BLACKWELL:
        yield Violation(where, f"{gpu.label} has no KV cache in nvfp4", "Set it to fp8 or `auto`.")
    elif dtype == "int8" and gpu.sm >= _BLACKWELL:
        yield Violation(where, f"{gpu.label} has no KV cache in int8", "Set it to fp8 or `auto`.")
    elif plan.quantization.kv_cache == "fp8" and backend == "tensorrt" and gpu.sm < _ADA:
        yield Violation(
            where,
            f"TensorRT-LLM's tables promise engines an fp8 KV cache from Ada on, and {gpu.label} is older",
            "Set it to the type of the activations, or try it before you rely on it.",
            "warning",
        )


@rule(
    "precision.int8-kv-reuse",
    on=ENGINE,
    references=(
        "triton-inference-server/tensorrtllm_backend#271",
        "triton-inference-server/tensorrtllm_backend#323",
        "triton-inference-server/tensorrtllm_backend#679",
        "NVIDIA/TensorRT-LLM#2166",
    ),
)
def _paged_context_excludes_int8(plan: Plan) -> Iterator[Violation]:
    """Reading a prompt in chunks, and reusing blocks, needs paged context attention, which cannot read an int8 cache.
    The engine is built without, and both options are then off in silence."""
    engine = plan.engine
    if plan.quantization.kv_cache != "int8":
        return
    keys = [("engine.chunked_prefill", engine.chunked_prefill), ("engine.kv_cache.reuse", engine.kv_cache.reuse)]
    if on := [key for key, is_on in keys if is_on]:
        yield Violation(
            "quantization.kv_cache",
            f"an int8 KV cache excludes {' and '.join(f'`{key}`' for key in on)}",
            "Set it to fp8 or `auto`, or these to false.",
        )


@rule("precision.fp8-kv-reuse", on=ENGINE, references=("NVIDIA/TensorRT-LLM tensorrt_llm/builder.py",))
def _paged_context_reads_fp8_beside_fp8(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Paged context attention reads an fp8 cache by fp8 arithmetic, which it has beside weights in fp8, w4a8_awq and
    nvfp4 alone. With others the engine is built without, and chunked prompts and reuse are then off in silence."""
    if plan.quantization.kv_cache == "fp8" and needs_paged_context(plan) and not reads_paged(plan, info):
        yield Violation(
            "quantization.kv_cache",
            f"an fp8 KV cache beside weights in {plan.quantization.format} excludes chunked prompts and reuse",
            "Set it to `auto`, the format to fp8, or `engine.chunked_prefill` and `engine.kv_cache.reuse` to false.",
        )


@rule("precision.activations", on=GPU)
def _attention_has_16_bits(plan: Plan) -> Iterator[Violation]:
    """TensorRT-LLM's attention kernels compute in bf16 or fp16."""
    if plan.engine.precision == "f32":
        yield Violation(
            "engine.precision", "there are no attention kernels in f32", "Set it to `auto`, `bf16` or `fp16`."
        )


@rule("precision.kv-activations", on=GPU)
def _cache_goes_with_activations(plan: Plan, info: ModelInfo) -> None:
    """A KV cache that is not quantized has the type of the activations: attention reads both as one."""
    if plan.engine.precision != "f32" and plan.quantization.kv_cache in ("bf16", "fp16"):
        gpu_kv_dtype(plan, info)


@rule("precision.group-size", on=GPU, references=("NVIDIA/Model-Optimizer#2320",))
def _groups_divide_what_a_gpu_holds(plan: Plan, info: ModelInfo) -> None:
    """Weights that share a 4-bit scale lie side by side in a row, and rows are cut over tensor GPUs: the group must
    divide the cut ones, and be of a size that there are kernels for."""
    if plan.quantization.format in AWQ_GROUP_SIZES and info.quantization is None:
        awq_group_size(plan, info)


@rule("precision.fp8-uncalibrated", on=GPU, references=_FP8_REFERENCES)
def _fp8_has_scales(checkpoint: Checkpoint) -> Iterator[Violation]:
    """Fp8 needs a scale for weights and one for activations, from a calibration pass. A checkpoint that only calls
    itself fp8 loads, or fails on missing scales, and answers with garbage. Conch always calibrates what it
    quantizes."""
    info = checkpoint.info
    if not info.weights_present or not info.quantization or stored_format(info.quantization) != "fp8":
        return
    problems: list[CheckpointError] = []
    weights = read_weights(checkpoint.path, problems)
    names = list(weights.tensors) if weights else []
    dynamic = str(info.quantization.get("quant_algo", "")).upper() == "FP8_PER_CHANNEL_PER_TOKEN"
    wanted = ("weight_scale",) if dynamic else ("weight_scale", "input_scale")
    if missing := [scale for scale in wanted if not any(name.endswith(scale) for name in names)]:
        yield Violation(
            "model.checkpoint",
            f"it calls itself fp8 and holds no {' and no '.join(f'`{scale}`' for scale in missing)}: it was never "
            "calibrated",
            "Name the checkpoint in 16 bits and set `quantization.format: fp8`, which calibrates.",
        )


def _format_violations(form: str, plan: Plan, gpu: Gpu, where: str) -> Iterator[Violation]:
    backend = plan.engine.backend
    kernels = KERNELS[backend].get(form)
    formats = ", ".join(f"`{name}`" for name in _usable(backend, gpu))
    fix = f"{gpu.label} with this backend takes {formats}."
    if kernels is None:
        others = [name for name, table in KERNELS.items() if form in table]
        also = f" (`{others[0]}` has)" if others else ""
        yield Violation(where, f"the backend `{backend}` has no kernels for {form} weights{also}", fix)
    elif not kernels.run_on(gpu.sm):
        span = f"from {_named(kernels.first)} on" if kernels.last is None else f"on {_spanned(kernels)} alone"
        yield Violation(
            where, f"{form} weights have kernels {span}; {gpu.label} has compute capability {_dotted(gpu.sm)}", fix
        )


_PLANNED = ("none", "int8", "int8_sq", "int4_awq", "w4a8_awq", "fp8", "nvfp4")


def _usable(backend: str, gpu: Gpu) -> list[str]:
    return [name for name, known in KERNELS[backend].items() if known.run_on(gpu.sm) and name in _PLANNED]


def _named(sm: int) -> str:
    return _NAMES[sm]


def _spanned(kernels: Kernels) -> str:
    names = [name for sm, name in _NAMES.items() if kernels.run_on(sm)]
    return " and ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _dotted(sm: int) -> str:
    return f"{sm // 10}.{sm % 10}"
