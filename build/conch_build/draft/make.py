"""A draft from a checkpoint: the target answers, the pruned model learns its answers, what came of it is measured.

    prompts ──> generate ──> answers ──> pruned ──> distil ──> export ──> matches, step times ──> report

Generation and measurement of steps need an engine, which is above this package: both are passed in. Everything
slow is kept in a working folder, so that a killed run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch_build.checkpoint import Checkpoint
from conch_build.draft.answers import Answer, Answers, Generate, token_weights
from conch_build.draft.prompts import prompts
from conch_build.draft.report import DraftReport, StepTimes, acceptance, acceptance_by_position, prospects
from conch_build.errors import InputError
from conch_build.quiet import quiet
from conch_build.units import format_seconds

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]

REPORT_FILE = "draft.json"
ANSWER_TOKENS = 128
"""Longest answer: prompts of many kinds teach more than long answers to few."""
_STATE = "training-{}.pt"
_HELD_OUT_SHARE, _GENERATION_SHARE, _DISTILLATION_SHARE = 0.05, 0.45, 0.5


@dataclass(frozen=True)
class Recipe:
    """How to make a draft."""

    layers: int
    """The target's first ones; at most all."""
    vocabulary: int
    """Tokens that the draft can guess; at most the target's."""
    minutes: float
    """For generation and training together."""


def check_target(checkpoint: Checkpoint) -> None:
    """Raises InputError for a checkpoint that no draft can be made of."""
    if checkpoint.info.quantization is not None:
        raise InputError(
            "is quantized already: a draft is pruned from full-precision weights",
            where=checkpoint.source,
            fix="Name the checkpoint it was quantized from in `model.checkpoint`.",
        )


def make_draft(
    checkpoint: Checkpoint,
    recipe: Recipe,
    generate: Generate,
    measure: Callable[[Path], StepTimes],
    work: Path,
    out: Path,
    *,
    log: Path | None = None,
    say: Say = lambda text: None,
) -> DraftReport:
    """Write the draft of `checkpoint` into the empty folder `out`, with its report in REPORT_FILE.

    `generate` answers as the target does; `measure` times the steps of target and draft, given the draft's folder.
    `work` holds what a later run goes on with. `log` takes what the libraries print (None: stderr).
    """
    check_target(checkpoint)
    answers, held_out = _collect(checkpoint, recipe, generate, work, log, say)

    from conch_build.draft import distil, export, prune

    layers = min(recipe.layers, checkpoint.info.num_layers)
    kept = _kept(answers, recipe, checkpoint)
    with quiet(log):
        model = prune.pruned(checkpoint.path, layers, kept)
    state = work / _state_name(recipe, answers)
    for other in work.glob(_STATE.format("*")):
        if other != state:
            other.unlink()
    seen = distil.distil(model, kept, answers, recipe.minutes * 60 * _DISTILLATION_SHARE, state)
    export.export(model, kept, checkpoint.path, checkpoint.info, out)
    say("measuring the draft on held-out answers")
    greedy, sampled = (
        distil.matches(model, kept, [answer for answer in held_out if (answer.prompt.temperature == 0) == is_greedy])
        for is_greedy in (True, False)
    )
    times = measure(out)
    report = DraftReport(
        layers=layers,
        vocabulary=len(kept),
        coverage=_coverage(held_out, kept),
        parameters=sum(weight.numel() for weight in model.parameters()),
        answers=len(answers),
        tokens=sum(len(answer.tokens) for answer in answers),
        tokens_seen=seen,
        acceptance=acceptance(greedy),
        acceptance_sampled=acceptance(sampled),
        acceptance_by_position=tuple(acceptance_by_position(greedy)),
        prospects=tuple(prospects(greedy, times)),
        draft_step_ms=1000 * times.draft,
        target_step_ms=tuple(1000 * times.target[count] for count in sorted(times.target)),
    )
    (out / REPORT_FILE).write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="utf-8")
    return report


def _collect(
    checkpoint: Checkpoint, recipe: Recipe, generate: Generate, work: Path, log: Path | None, say: Say
) -> tuple[list[Answer], list[Answer]]:
    """The answers to learn from and the held-out ones; those of an earlier run count."""
    with quiet(log):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
    found = []
    for name, is_held_out, share in (
        ("held-out answers", True, _HELD_OUT_SHARE),
        ("answers", False, _GENERATION_SHARE),
    ):
        answers = Answers(work / name.replace(" ", "-"))
        stream = partial(prompts, tokenizer, held_out=is_held_out)
        answers.collect(generate, stream, ANSWER_TOKENS, recipe.minutes * 60 * share, f"generating {name}")
        found.append(answers.load())
        tokens = sum(len(answer.tokens) for answer in found[-1])
        say(f"{len(found[-1]):,} {name}, {tokens:,} tokens, in {format_seconds(answers.seconds)}")
    return found[1], found[0]


def _kept(answers: list[Answer], recipe: Recipe, checkpoint: Checkpoint) -> torch.Tensor:
    """Ids of the tokens that the target uses most, ascending. Of those it never used the lowest: BPE numbers them
    from the most frequent on."""
    import numpy as np
    import torch

    weights = token_weights(answers, checkpoint.info.vocab_size)
    weights[list(checkpoint.info.end_ids)] = np.inf
    order = np.argsort(-weights, kind="stable")[: recipe.vocabulary]
    return torch.from_numpy(np.sort(order))


def _coverage(answers: list[Answer], kept: torch.Tensor) -> float:
    import numpy as np

    return float(np.isin(np.concatenate([answer.tokens for answer in answers]), kept.numpy()).mean())


def _state_name(recipe: Recipe, answers: list[Answer]) -> str:
    """The file of a training's state: another recipe, or more answers to learn from, are another training."""
    what: dict[str, Any] = {**asdict(recipe), "answers": len(answers)}
    return _STATE.format(hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12])
