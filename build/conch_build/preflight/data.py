"""Rules about what a build reads beside the weights: calibration text, chat template, oddities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from conch_build.calibration import RECORD_FIX, parse_record, split_texts
from conch_build.checkpoint import Checkpoint
from conch_build.compile.tensorrt.checkpoint import AWQ_GROUP_SIZES, AWQ_SAMPLES
from conch_build.model_info import ModelInfo
from conch_build.plan import Lora, Plan, Speculation, Triton
from conch_build.plan_gateway import Gateway
from conch_build.preflight.registry import ENGINE, GPU, Violation, rule
from conch_build.quantize import calibrates

_KEY = "quantization.calibration.data"


@rule("calibration.file")
def _calibration_file_is_readable(plan: Plan) -> Iterator[Violation]:
    """Calibration texts are read when quantization begins: a missing file, a line that is no JSON, or too few of them
    would end or weaken a build after minutes."""
    data = plan.quantization.calibration.data
    if data in ("builtin", "self"):
        return
    path = Path(data)
    if path.suffix not in (".txt", ".jsonl"):
        yield Violation(_KEY, f"{path} is neither .txt nor .jsonl", "Name such a file, `builtin` or `self`.")
        return
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        yield Violation(_KEY, f"{path} cannot be read: {reason}", "Correct the path or the file.")
        return
    records = path.suffix == ".jsonl"
    lines = content.split("\n")
    fault = _bad_record(lines) if records else None
    texts = sum(bool(line.strip()) for line in lines) if records else len(split_texts(content))
    wanted = plan.quantization.calibration.samples
    if not texts:
        yield Violation(_KEY, f"{path} is empty", "Put text in it, or use `builtin`.")
    elif fault:
        yield Violation(_KEY, f"{path}, {fault}", RECORD_FIX)
    elif texts < wanted and calibrates(plan.quantization.format):
        fewer = f"{path} holds {texts} texts, fewer than the {wanted} of `samples`"
        yield Violation(_KEY, fewer, "Add texts, or lower `quantization.calibration.samples`.", "warning")


@rule("calibration.awq-samples", on=ENGINE, severity="warning")
def _awq_reads_few_texts(plan: Plan) -> Iterator[Violation]:
    """For AWQ, TensorRT-LLM's `quantize.py` reads 32 texts and no more, as each is run through every layer for every
    scale that it tries."""
    calibration, form = plan.quantization.calibration, plan.quantization.format
    if form in AWQ_GROUP_SIZES and "samples" in calibration.model_fields_set and calibration.samples > AWQ_SAMPLES:
        yield Violation(
            "quantization.calibration.samples",
            f"quantize.py reads {AWQ_SAMPLES} texts for {form}, not {calibration.samples}",
            f"Set it to {AWQ_SAMPLES}, or `engine.backend: pytorch`.",
            "warning",
        )


def _bad_record(lines: list[str]) -> str | None:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                parse_record(line)
        except ValueError as error:
            return f"line {number} {error}"
    return None


@rule("checkpoint.config-only", on=GPU, severity="warning")
def _weights_are_not_there_yet(info: ModelInfo) -> Iterator[Violation]:
    """The checkpoint is its config.json alone. A plan can be checked and printed by it; a build needs the weights, and
    what only they tell, as truncated files, is not known yet."""
    if not info.weights_present:
        yield Violation(
            "model.checkpoint",
            "it holds no weights: their sizes are computed from config.json",
            "Enough for `conch check` and `conch build --dry-run`; download the weights to build.",
            "warning",
        )


@rule("plan.unused", severity="warning")
def _nothing_is_set_in_vain(plan: Plan) -> Iterator[Violation]:
    """A key of the plan that nothing reads: what it promises does not happen."""
    fix = "Leave it out, or keep it as a note."
    for key, why in _unread(plan):
        yield Violation(key, why, fix, "warning")


def _unread(plan: Plan) -> Iterator[tuple[str, str]]:
    """Key that is not as it is when it is left out -> why nothing reads it."""
    quantization, speculation, lora = plan.quantization, plan.engine.speculation, plan.engine.lora
    if quantization.group_size != "auto" and quantization.format not in AWQ_GROUP_SIZES:
        yield "quantization.group_size", f"weights in {quantization.format} have no groups of a chosen size"
    if speculation.method == "none" and speculation.max_draft_len != Speculation().max_draft_len:
        yield "engine.speculation.max_draft_len", "nothing guesses tokens: `engine.speculation.method` is none"
    if speculation.method != "ngram" and _differs(speculation, Speculation(), "max_matching_ngram_size"):
        yield "engine.speculation.max_matching_ngram_size", f"it is of ngram, and the method is {speculation.method}"
    for name in ("max_rank", "max_loaded"):
        if not (lora.adapters or lora.target_modules) and _differs(lora, Lora(), name):
            yield f"engine.lora.{name}", "there are no adapters: `engine.lora.adapters` is empty"
    if plan.serving.disaggregated is not None:
        if plan.serving.replicas > 1:
            yield "serving.replicas", "disaggregated workers have `instances` of their own"
        served = plan.engine.backend != "openvino"  # on the CPU Tritons and a gateway serve them
        for part, own in (("triton", Triton()), ("gateway", Gateway())) if served else ():
            names = (name for name in type(own).model_fields if name not in _REFUSED)
            for name in (name for name in names if _differs(getattr(plan.serving, part), own, name)):
                yield f"serving.{part}.{name}", "disaggregated workers are served without it"


_REFUSED = ("instances", "launch")
"""What other rules have words for."""


def _differs(part: BaseModel, left_out: BaseModel, name: str) -> bool:
    return bool(getattr(part, name) != getattr(left_out, name))


@rule("model.no-chat-template", severity="warning")
def _chat_needs_a_template(checkpoint: Checkpoint) -> Iterator[Violation]:
    """A chat is made into one text by the tokenizer's template. Without one only completions can be served."""
    if not checkpoint.info.chat_template and (checkpoint.path / "tokenizer.json").is_file():
        yield Violation(
            "model.checkpoint",
            "its tokenizer has no chat template: completions will work, chat will be refused",
            "Use an instruction-tuned model, or add a chat_template.jinja.",
            "warning",
        )


@rule(
    "model.no-end-token",
    severity="warning",
    references=(
        "triton-inference-server/tensorrtllm_backend#57",
        "triton-inference-server/tensorrtllm_backend#128",
        "NVIDIA/TensorRT-LLM#5670",
    ),
)
def _answers_can_end(info: ModelInfo) -> Iterator[Violation]:
    """No file of the checkpoint names a token that ends an answer, so that each runs to its `max_tokens`. Conch takes
    the end tokens of config, generation config and tokenizer together."""
    if not info.end_ids:
        yield Violation(
            "model.checkpoint",
            "it names no end token: every answer runs to its `max_tokens`",
            "Set `eos_token_id` in its generation_config.json.",
            "warning",
        )


@rule("model.oddity", severity="warning", references=("vllm-project/vllm#6758",))
def _oddities(info: ModelInfo) -> Iterator[Violation]:
    """Something in the checkpoint is unusual and works all the same: a tied head that differs, ids beyond the
    vocabulary."""
    for note in info.notes:
        yield Violation("model.checkpoint", note, "Nothing needs to be done if you know of it.", "warning")
