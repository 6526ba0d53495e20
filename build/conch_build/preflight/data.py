"""Rules about what a build reads beside the weights: calibration text, chat template, oddities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.calibration import RECORD_FIX, parse_record, split_texts
from conch_build.model_info import ModelInfo
from conch_build.plan import Cost, Plan, Slo
from conch_build.preflight.registry import Violation, rule
from conch_build.quantize import calibrates

_KEY = "quantization.calibration.data"


@rule("calibration.file")
def _calibration_file_is_readable(plan: Plan) -> Iterator[Violation]:
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


def _bad_record(lines: list[str]) -> str | None:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                parse_record(line)
        except ValueError as error:
            return f"line {number} {error}"
    return None


@rule("plan.unused")
def _nothing_is_set_in_vain(plan: Plan) -> Iterator[Violation]:
    fix = "Leave it out, or keep it as a note."
    for key, is_set in (("slo", plan.slo != Slo()), ("cost", plan.cost != Cost())):
        if is_set:
            yield Violation(key, "no command of this version reads it", fix, "warning")


@rule("model.no-chat-template")
def _chat_needs_a_template(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    if not info.chat_template:
        yield Violation(
            "model.checkpoint",
            "its tokenizer has no chat template: completions will work, chat will be refused",
            "Use an instruction-tuned model, or add a chat_template.jinja.",
            "warning",
        )


@rule("model.no-end-token")
def _answers_can_end(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    if not info.end_ids:
        yield Violation(
            "model.checkpoint",
            "it names no end token: every answer runs to its `max_tokens`",
            "Set `eos_token_id` in its generation_config.json.",
            "warning",
        )


@rule("model.oddity")
def _oddities(plan: Plan, info: ModelInfo) -> Iterator[Violation]:
    for note in info.notes:
        yield Violation("model.checkpoint", note, "Nothing needs to be done if you know of it.", "warning")
