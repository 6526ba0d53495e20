"""Rules about LoRA adapters: their names, their memory, and whether each fits the model, as `adapters` judges it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from conch_build.adapters import adaptable_layers, examine
from conch_build.compile.pytorch.lora import READER as API_READER
from conch_build.compile.tensorrt.adapters import READER as ENGINE_READER
from conch_build.gpu.storage import stored_format
from conch_build.machine import memory_bytes
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.preflight.registry import CPU, ENGINE, GPU, LLM_API, Violation, rule
from conch_build.profiles import PROFILES
from conch_build.size.cpu import cpu_weight_bytes
from conch_build.units import format_bytes

_WITHOUT_ADAPTERS = ("int8_sq", "nvfp4")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@rule("lora.name")
def _adapters_can_be_named(plan: Plan) -> Iterator[Violation]:
    """Requests choose an adapter by its name in place of the model's: both must be words, and differ."""
    for name in plan.engine.lora.adapters:
        key = f"engine.lora.adapters.{name}"
        if not _NAME.fullmatch(name):
            fix = "Use up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit."
            yield Violation(key, f"{name!r} cannot be a model's name in a request", fix)
        elif name == plan.name:
            yield Violation(key, "it is the model's own name", "Give the adapter another one.")


@rule("lora.files", decided="adapter")
def _adapters_fit(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """The directory lacks what PEFT's `save_pretrained` writes. Each adapter is read and held against the model; what
    else is wrong with it has rules of its own, as `lora.rank`."""
    lora = plan.engine.lora
    layers = adaptable_layers(info)
    for name, path in lora.adapters.items():
        for error in examine(Path(path), layers, lora.max_rank)[1]:
            message = f"{error.where}: {error.what}"
            yield Violation(f"engine.lora.adapters.{name}", message, error.fix or "", rule=error.rule)


@rule("lora.modules", on=GPU)
def _modules_have_upstreams_names(plan: Plan) -> Iterator[Violation]:
    """`target_modules` are TensorRT-LLM's names (`attn_q`, `mlp_gate`), not those of PEFT (`q_proj`)."""
    known = _module_names()
    for name in plan.engine.lora.target_modules or ():
        if name not in known:
            theirs = {**ENGINE_READER.modules, **API_READER.modules}.get(name)
            near = [theirs] if theirs else difflib.get_close_matches(name, known, n=1)
            fix = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."
            yield Violation("engine.lora.target_modules", f"TensorRT-LLM has no module `{name}`", fix)


@rule("lora.format", on=ENGINE, references=("NVIDIA/TensorRT-LLM tensorrt_llm/quantization/layers.py",))
def _layers_take_adapters(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Layers of an engine whose activations are rounded to int8 by SmoothQuant, or to nvfp4, take no adapters:
    `trtllm-build` ends in an assertion."""
    form = (stored_format(info.quantization) if info.quantization else None) or plan.quantization.format
    lora = plan.engine.lora
    if (lora.adapters or lora.target_modules) and form in _WITHOUT_ADAPTERS:
        yield Violation(
            "engine.lora",
            f"layers of engines in {form} take no adapters",
            "Set `quantization.format` to none, int8, int4_awq or fp8, or use `engine.backend: pytorch`.",
        )


@rule(
    "lora.untested",
    on=LLM_API,
    severity="warning",
    references=("NVIDIA/TensorRT-LLM docs/source/features/feature-combination-matrix.md",),
)
def _upstream_has_tried_it(plan: Plan) -> Iterator[Violation]:
    """TensorRT-LLM's own table of features calls adapters together with speculation, disaggregated workers or expert
    parallelism untested: it may work."""
    together = {
        "engine.speculation": plan.engine.speculation.method != "none",
        "serving.disaggregated": plan.serving.disaggregated is not None,
        "engine.parallel.expert": plan.engine.parallel.expert > 1,
    }
    for key in (key for key, is_on in together.items() if is_on and plan.engine.lora.adapters):
        yield Violation(
            key, "TensorRT-LLM has not tested it together with adapters", "Try it before you rely on it.", "warning"
        )


@rule("lora.memory", on=CPU)
def _machine_holds_the_weights_twice(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    """Steps with adapters run in a second network: the weights are in memory twice."""
    lora = plan.engine.lora
    if not lora.adapters:
        return
    memory = memory_bytes()
    weights = 2 * cpu_weight_bytes(info, plan.quantization.format, plan.engine.max_seq_len)
    elements = sum(rows + columns for rows, columns in adaptable_layers(info).values())
    slots = 4 * elements * lora.max_rank * min(lora.max_loaded, len(lora.adapters))
    if weights + slots + plan.engine.kv_cache.size > memory:
        yield Violation(
            "engine.lora",
            f"a step with adapters has a network of its own: twice the weights ({format_bytes(weights)}), up to "
            f"{format_bytes(slots)} of adapters and the KV cache do not fit this machine's {format_bytes(memory)}",
            "Lower `engine.kv_cache.size` or `engine.lora.max_loaded`, quantize further, or use a larger machine.",
        )


def _module_names() -> list[str]:
    """As the last release with engines lists them for `trtllm-build`; the LLM API has the same."""
    flags = PROFILES["1.2.1"].flags_of("trtllm-build")
    choices = next(flag.choices for flag in flags if flag.name == "--lora_target_modules")
    return sorted({*map(str, choices), *API_READER.modules.values()})
