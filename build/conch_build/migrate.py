"""From an engine plan (`backend: tensorrt`) to one for the LLM API: what changes, and what has no counterpart.

TensorRT-LLM's engines end with release 1.2.1; the LLM API is in it and in all that come after it. Decides on the plan
alone: whether the new one works with its checkpoint is for `preflight`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from conch_build.errors import PlanError
from conch_build.gpu.cards import Gpu, find_gpu
from conch_build.plan import Plan, parse_plan
from conch_build.preflight.precision import KERNELS
from conch_build.yaml_edit import REMOVED, edited, scalar

Kind = Literal["changed", "moved", "dropped", "no counterpart", "note"]

FLAGS_AS_ARGUMENTS = {
    "gather_generation_logits": "gather_generation_logits",
    "max_beam_width": "max_beam_width",
}
"""Flag of trtllm-build -> the argument of the LLM API that does the same."""

FLAGS_DECIDED_THERE = {
    **dict.fromkeys(
        (
            "bert_attention_plugin",
            "context_fmha",
            "fp8_rowwise_gemm_plugin",
            "gemm_allreduce_plugin",
            "gemm_plugin",
            "gemm_swiglu_plugin",
            "gpt_attention_plugin",
            "low_latency_gemm_plugin",
            "low_latency_gemm_swiglu_plugin",
            "mamba_conv1d_plugin",
            "moe_plugin",
            "nccl_plugin",
            "norm_quant_fusion",
            "reduce_fusion",
            "use_fp8_context_fmha",
            "use_fused_mlp",
        ),
        "the LLM API chooses its kernels itself",
    ),
    **dict.fromkeys(("multiple_profiles", "opt_num_tokens"), "the LLM API tunes itself when it starts"),
    **dict.fromkeys(
        ("fast_build", "input_timing_cache", "log_level", "monitor_memory", "output_timing_cache", "workers"),
        "there is no build",
    ),
    "max_input_len": "prompts may be as long as `engine.max_seq_len`",
}
"""Flag -> why it needs no counterpart."""

_OF_LIKE_SIZE = {"int8": ("fp8",), "int8_sq": ("fp8",), "int4_awq": ("nvfp4",), "w4a8_awq": ("nvfp4", "int4_awq")}
"""Format -> others whose weights take the same memory, the preferred first."""


@dataclass(frozen=True)
class Change:
    """One line of what a migration does. `now`: REMOVED for a key that goes. `to`: the key that a value moves to."""

    kind: Kind
    key: str
    why: str
    was: Any = None
    now: Any = None
    to: str | None = None

    def edits(self) -> dict[tuple[str, ...], Any]:
        """What it does to the plan; nothing for a note."""
        if self.kind == "note":
            return {}
        own = {tuple(self.key.split(".")): self.now}
        return own if self.to is None else {**own, tuple(self.to.split(".")): self.was}

    def as_dict(self) -> dict[str, Any]:
        now = None if self.now is REMOVED else self.now
        return {"kind": self.kind, "key": self.key, "was": self.was, "now": now, "to": self.to, "why": self.why}

    def __str__(self) -> str:
        value = "" if self.kind == "note" else f": {scalar(self.was)}"
        target = f" -> {self.to}" if self.to else ""
        if self.kind != "note" and self.now is not REMOVED:
            value += f" -> {scalar(self.now)}"
        return f"{self.kind:<15}{self.key}{target}{value}\n{'':<15}{self.why}"


@dataclass(frozen=True)
class Migration:
    text: str
    """The new plan."""
    changes: tuple[Change, ...]
    comments_kept: bool


def migrate(text: str, source: str = "plan") -> Migration:
    """The new plan's text and what is different in it; `source`: the name of the old one in errors.

    Raises PlanError for text that is no plan, or a plan that is for no engine.
    """
    plan = parse_plan(text, source=source)
    if plan.engine.backend != "tensorrt":
        raise PlanError(
            f"the plan is for the {plan.engine.backend} backend, and only engines are migrated",
            where="engine.backend",
            fix="Set it by hand, and let `conch check` say what else it needs.",
        )
    changes = tuple(changes_of(plan))
    new, kept = edited(text, {path: value for change in changes for path, value in change.edits().items()})
    parse_plan(new, source="the new plan")
    return Migration(new, changes, kept)


def changes_of(plan: Plan) -> Iterator[Change]:
    """Everything that an LLM-API plan says otherwise, in the order of the plan."""
    gpu = None if plan.target.gpu is None else find_gpu(plan.target.gpu)
    yield from _quantization(plan, gpu)
    yield Change("changed", "engine.backend", "the LLM API loads the checkpoint itself", "tensorrt", "pytorch")
    yield from _speculation(plan)
    yield from _lora(plan)
    yield from _build_args(plan)
    yield from _serving(plan)


def _quantization(plan: Plan, gpu: Gpu | None) -> Iterator[Change]:
    form = plan.quantization.format
    new = _format(form, gpu)
    if new != form:
        kind: Kind = "no counterpart" if form not in KERNELS["pytorch"] else "changed"
        has = f"the LLM API has no kernels for {form}" + (f" on {gpu.label}" if kind == "changed" and gpu else "")
        yield Change(kind, "quantization.format", f"{has}; {_reason(form, new)}", form, new)
    if plan.quantization.kv_cache == "int8":
        why = "the LLM API has no int8 cache; fp8 takes the same memory, and excludes neither chunks nor reuse"
        yield Change("no counterpart", "quantization.kv_cache", why, "int8", "fp8")
    elif plan.quantization.kv_cache == "auto" and new != form and new in ("fp8", "nvfp4"):
        yield Change("note", "quantization.kv_cache", f"`auto` is fp8 beside {new} weights; it was 16 bits")
    if plan.quantization.group_size != "auto" and not new.endswith("awq"):
        why = f"only int4_awq and w4a8_awq have groups to choose, {new} has not"
        yield Change("dropped", "quantization.group_size", why, plan.quantization.group_size, REMOVED)
    data = plan.quantization.calibration.data
    if new in ("nvfp4", "w4a8_awq") and data != "builtin":
        why = f"{new} is quantized by ModelOpt's hf_ptq.py, which calibrates with data sets of its own"
        yield Change("no counterpart", "quantization.calibration.data", why, data, REMOVED)


def _format(form: str, gpu: Gpu | None) -> str:
    """The format itself where the LLM API has kernels for it on the GPU, else one of the same size, else none."""
    known = KERNELS["pytorch"]
    for candidate in (form, *_OF_LIKE_SIZE.get(form, ())):
        if candidate in known and (gpu is None or known[candidate].run_on(gpu.sm)):
            return candidate
    return "none"


def _reason(form: str, new: str) -> str:
    if new == "none":
        return "16 bits are left, which take more memory"
    return f"{new} takes the same memory, and answers otherwise than {form}: compare them"


def _speculation(plan: Plan) -> Iterator[Change]:
    speculation, key = plan.engine.speculation, "engine.speculation"
    if speculation.method in ("medusa", "lookahead"):
        instead = {
            "medusa": "eagle3, with a head trained for the model, is its successor",
            "lookahead": "ngram needs no draft model either",
        }[speculation.method]
        why = f"the LLM API has no {speculation.method}; {instead}"
        yield Change("no counterpart", f"{key}.method", why, speculation.method, "none")
        if speculation.checkpoint is not None:
            yield Change("dropped", f"{key}.checkpoint", "nothing loads the heads", speculation.checkpoint, REMOVED)
        if "max_draft_len" in speculation.model_fields_set:
            why = "nothing is guessed"
            yield Change("dropped", f"{key}.max_draft_len", why, speculation.max_draft_len, REMOVED)
    elif speculation.method == "draft":
        why = "the LLM API guesses and verifies in one server: no BLS, no second engine; the draft stays in 16 bits"
        yield Change("note", f"{key}.method", why)
        if plan.engine.parallel.pipeline > 1:
            why = "the LLM API does not speculate with pipeline stages: set it to 1, or the method to none"
            yield Change("note", "engine.parallel.pipeline", why)


def _lora(plan: Plan) -> Iterator[Change]:
    if plan.engine.lora.adapters:
        yield Change("note", "engine.lora.adapters", "they are read as PEFT saves them; nothing is converted")


def _build_args(plan: Plan) -> Iterator[Change]:
    for flag, value in plan.engine.build_args.items():
        key = f"engine.build_args.{flag}"
        if flag in FLAGS_AS_ARGUMENTS:
            argument = f"engine.llm_args.{FLAGS_AS_ARGUMENTS[flag]}"
            yield Change("moved", key, "the LLM API takes it as an argument", value, REMOVED, argument)
        elif flag in FLAGS_DECIDED_THERE:
            yield Change("dropped", key, FLAGS_DECIDED_THERE[flag], value, REMOVED)
        else:
            yield Change("no counterpart", key, "no argument of the LLM API does this", value, REMOVED)


def _serving(plan: Plan) -> Iterator[Change]:
    triton = plan.serving.triton
    if triton.layout == "tokens":
        yield Change("note", "serving.triton.layout", "`tensorrt_llm` has the same tensors, now around the LLM API")
    else:
        why = "`tensorrt_llm` is now around the LLM API; its tensors and the text models' stay as they are"
        yield Change("note", "serving.triton.layout", why)
    if triton.launch == "orchestrator":
        why = "the LLM API starts its workers itself"
        yield Change("dropped", "serving.triton.launch", why, triton.launch, REMOVED)


def report(changes: Sequence[Change]) -> str:
    """The changes, a paragraph each."""
    return "\n".join(map(str, changes))
