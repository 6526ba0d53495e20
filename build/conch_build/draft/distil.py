"""Distillation: the draft learns to give each token of the target's answers the probability the target gave it.

The loss at a token is the cross entropy between the target's best few probabilities and the draft's, over the
draft's vocabulary: up to a constant the Kullback-Leibler divergence that Leviathan's acceptance depends on. Runs
for a given time; its state is kept so that a killed run goes on. Knows nothing of where answers come from.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from conch_build.console import Progress
from conch_build.draft.answers import Answer
from conch_build.errors import SetupError, StoreError
from conch_build.machine import has_bf16

BATCH_ANSWERS = 8
LEARNING_RATE = 3e-3
WARM_UP_STEPS = 20
SAVE_EVERY_S = 30.0
_BUCKET_BATCHES = 16
"""Batches among which answers are sorted by length, so that little is padded."""


class Batch(NamedTuple):
    """A few answers side by side."""

    ids: torch.Tensor
    """i64 [answers, longest] prompt and answer, padded behind."""
    rows: torch.Tensor
    """i64 [n] where in the flattened `ids` a token of an answer comes next."""
    tokens: torch.Tensor
    """i64 [n] that token."""
    top_ids: torch.Tensor
    """i64 [n, K]"""
    top_probs: torch.Tensor
    """f32 [n, K]"""


def batch_of(answers: Sequence[Answer]) -> Batch:
    longest = max(len(answer.prompt.ids) + len(answer.tokens) - 1 for answer in answers)
    ids = torch.zeros(len(answers), longest, dtype=torch.int64)
    rows = []
    for index, answer in enumerate(answers):
        known = [*answer.prompt.ids, *answer.tokens[:-1].tolist()]
        ids[index, : len(known)] = torch.tensor(known)
        rows.append(index * longest + len(answer.prompt.ids) - 1 + torch.arange(len(answer.tokens)))

    def joined(parts: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts))

    return Batch(
        ids,
        torch.cat(rows),
        joined([answer.tokens for answer in answers]).long(),
        joined([answer.top_ids for answer in answers]).long(),
        joined([answer.top_log_probs for answer in answers]).exp(),
    )


def logits_of(model: Any, batch: Batch) -> torch.Tensor:
    """f32 [n, V'] the draft's logits at each token of the answers."""
    # Padding lies behind the answers, where causal attention keeps it from being seen.
    with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16()):
        hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1)[batch.rows])
    return logits.float()


def loss_of(logits: torch.Tensor, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens; `rows` [vocabulary] maps the target's tokens to the head's rows, -1: not kept."""
    kept = rows[batch.top_ids]
    probs = batch.top_probs * (kept >= 0)
    log_probs = functional.log_softmax(logits, dim=-1).gather(1, kept.clamp(min=0))
    return -(probs * log_probs).sum(dim=1).mean()


def distil(model: Any, kept: torch.Tensor, answers: Sequence[Answer], seconds: float, state: Path) -> int:
    """Train `model` in place for `seconds` in all, those of killed runs with the same `state` included.

    Everything learns but the embedding. The learning rate falls to 0 over the time. Returns the answer tokens seen.
    """
    rows = torch.full((model.config.vocab_size,), -1)
    rows[kept] = torch.arange(len(kept))
    model.model.embed_tokens.requires_grad_(False)
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(learned.values(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    spent, step, seen = _restore(state, learned, optimizer)
    started = saved = time.monotonic()
    before = spent
    with Progress("distilling, seconds", round(seconds)) as progress:
        model.train()
        for chosen in _batches(answers, seed=step):
            progress.advance(int(min(spent, seconds)) - progress.done)
            if spent >= seconds:
                break
            rate = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - spent / seconds)
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = batch_of(chosen)
            optimizer.zero_grad()
            loss_of(logits_of(model, batch), batch, rows).backward()
            torch.nn.utils.clip_grad_norm_(learned.values(), 1.0)
            optimizer.step()
            step, seen = step + 1, seen + len(batch.tokens)
            now = time.monotonic()
            spent = before + now - started
            if now - saved > SAVE_EVERY_S:
                saved = now
                _save(state, learned, optimizer, spent, step, seen)
        model.eval()
    _save(state, learned, optimizer, spent, step, seen)
    return seen


def _batches(answers: Sequence[Answer], seed: int) -> Iterator[list[Answer]]:
    """Batches without end, every answer once a round, those of about the same length together."""
    shuffle = random.Random(seed)
    while True:
        order = shuffle.sample(list(answers), len(answers))
        batches = []
        for start in range(0, len(order), BATCH_ANSWERS * _BUCKET_BATCHES):
            bucket = sorted(
                order[start : start + BATCH_ANSWERS * _BUCKET_BATCHES],
                key=lambda answer: len(answer.prompt.ids) + len(answer.tokens),
            )
            batches += [bucket[index : index + BATCH_ANSWERS] for index in range(0, len(bucket), BATCH_ANSWERS)]
        yield from shuffle.sample(batches, len(batches))


def _save(state: Path, learned: dict[str, Any], optimizer: Any, spent: float, step: int, seen: int) -> None:
    scratch = state.with_name(f".{state.name}")
    progress = {"spent": spent, "step": step, "seen": seen}
    try:
        torch.save({"weights": dict(learned), "optimizer": optimizer.state_dict(), **progress}, scratch)
    except RuntimeError as error:  # a full disk, in torch's words
        raise SetupError("cannot be written", where=str(scratch), fix="Make room on its disk and run again.") from error
    scratch.rename(state)


def _restore(state: Path, learned: dict[str, Any], optimizer: Any) -> tuple[float, int, int]:
    if not state.is_file():
        return 0.0, 0, 0
    try:
        saved = torch.load(state, weights_only=True)
        with torch.no_grad():
            for name, weight in learned.items():
                weight.copy_(saved["weights"][name])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["spent"], saved["step"], saved["seen"]
    except Exception as error:  # torch raises what it likes
        what = f"is damaged: the training does not go on from it ({type(error).__name__})"
        raise StoreError(what, where=str(state), fix="Remove it: the training starts anew.") from error


def matches(model: Any, kept: torch.Tensor, answers: Sequence[Answer]) -> list[NDArray[np.bool_]]:
    """For each answer, in no order that means anything: which tokens the draft's best guess is, given all before."""
    found: list[NDArray[np.bool_]] = []
    ordered = sorted(answers, key=lambda answer: len(answer.prompt.ids) + len(answer.tokens))
    with torch.inference_mode():
        for start in range(0, len(ordered), BATCH_ANSWERS):
            chosen = ordered[start : start + BATCH_ANSWERS]
            batch = batch_of(chosen)
            right = kept[logits_of(model, batch).argmax(dim=-1)] == batch.tokens
            found += [part.numpy() for part in right.split([len(answer.tokens) for answer in chosen])]
    return found
