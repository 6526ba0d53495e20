"""Rules about speculation: what the backend can guess with, and whether a draft model speaks the target's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conch_build.checkpoint import Checkpoint, examine
from conch_build.convert import Say
from conch_build.files import read_json
from conch_build.plan import Plan, plan_of_draft
from conch_build.preflight.registry import Violation, rule

_KEY = "engine.speculation"
_ON_CPU = ("none", "draft", "ngram")


@rule("speculation.method")
def _backend_has_the_method(plan: Plan) -> Iterator[Violation]:
    method = plan.engine.speculation.method
    if plan.engine.backend == "openvino" and method not in _ON_CPU:
        yield Violation(
            f"{_KEY}.method",
            f"`{method}` speculation needs a model made for it, which the openvino backend cannot run",
            "Set it to draft, ngram or none.",
        )


@rule("speculation.checkpoint")
def _draft_has_a_checkpoint(plan: Plan) -> Iterator[Violation]:
    speculation = plan.engine.speculation
    if speculation.method == "draft" and speculation.checkpoint is None:
        yield Violation(
            f"{_KEY}.checkpoint", "a draft model is asked for, but not which", "`conch draft` makes one for this plan."
        )
    elif speculation.method in ("none", "ngram") and speculation.checkpoint is not None:
        yield Violation(
            f"{_KEY}.checkpoint",
            f"method `{speculation.method}` has no use for a draft model",
            "Remove it, or set `engine.speculation.method: draft`.",
        )


@rule("speculation.max-draft-len")
def _a_step_holds_a_draft(plan: Plan) -> Iterator[Violation]:
    speculation, engine = plan.engine.speculation, plan.engine
    if speculation.method != "none" and speculation.max_draft_len >= engine.max_num_tokens:
        yield Violation(
            f"{_KEY}.max_draft_len",
            f"{speculation.max_draft_len} guesses and one more token do not fit a step of {engine.max_num_tokens}",
            "Set it below `engine.max_num_tokens`; 2 to 6 are usual.",
        )


def draft_violations(plan: Plan, target: Checkpoint, cache_dir: Path | None, *, say: Say) -> Iterator[Violation]:
    """What is wrong with the draft model of `plan`, alone or beside its `target`."""
    draft_plan = plan_of_draft(plan)
    if draft_plan is None:
        return
    where = f"{_KEY}.checkpoint"
    draft, problems = examine(draft_plan.model, cache_dir, say=say)
    for problem in problems:
        yield Violation(where, problem.message, rule=problem.rule, fix="")
    if draft is None:
        return
    info, own = draft.info, target.info
    if info.vocab_size != own.vocab_size:
        yield Violation(
            where,
            f"the draft has a vocabulary of {info.vocab_size:,} tokens, the target one of {own.vocab_size:,}",
            "Choose a draft of the target's family, or make one with `conch draft`.",
            rule="speculation.vocabulary",
        )
    elif differing := _differing_tokens(draft.path, target.path):
        yield Violation(
            where,
            f"the tokenizers differ: {differing}. The draft's guesses would be other words",
            "Choose a draft with the target's tokenizer, or make one with `conch draft`.",
            rule="speculation.tokenizer",
        )
    if info.max_position_embeddings < plan.engine.max_seq_len:
        yield Violation(
            where,
            f"the draft has {info.max_position_embeddings:,} positions, fewer than `engine.max_seq_len`",
            f"Lower `engine.max_seq_len` to {info.max_position_embeddings}, or choose another draft.",
            rule="speculation.positions",
        )
    if info.parameters >= own.parameters:
        yield Violation(
            where,
            f"the draft is no smaller than the target ({info.parameters:,} and {own.parameters:,} parameters): "
            "it can only lose time",
            "Choose a smaller one; a tenth of the target is usual.",
            severity="warning",
            rule="speculation.size",
        )


def _differing_tokens(draft: Path, target: Path) -> str:
    """The first id that the two tokenizers read differently, in words; empty if there is none."""
    ours, theirs = _tokens(target), _tokens(draft)
    for token, number in sorted(ours.items(), key=lambda item: item[1]):
        if theirs.get(token) != number:
            other = next((name for name, value in theirs.items() if value == number), None)
            return f"id {number} is {token!r} in the target and {other!r} in the draft"
    return ""


def _tokens(folder: Path) -> dict[str, int]:
    """Every token of a checkpoint's tokenizer with its id."""
    data = read_json(folder / "tokenizer.json")
    vocabulary = data["model"]["vocab"]
    known = dict(vocabulary) if isinstance(vocabulary, dict) else {entry[0]: n for n, entry in enumerate(vocabulary)}
    return known | {entry["content"]: entry["id"] for entry in data.get("added_tokens", [])}
