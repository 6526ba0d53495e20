"""What transformers computes for a tiny checkpoint: the measure of compiled engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from conch.engine.runner import OpenVINORunner
from tests.build.compiled import Logits, blocks, decode, greedy, prefill

EXACT_BOUND = 2e-5
"""In f32 only the order of additions differs: about 20 rounding errors of 1e-7 on logits of up to 4."""
PROMPT = np.random.default_rng(0).integers(3, 320, 70).tolist()
"""Three blocks, the last one part empty."""


def reference(source: Path, weights: dict[str, Any] | None = None) -> Any:
    """transformers' own model in f32, with some `weights` replaced."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    if weights is not None:
        assert not model.load_state_dict(weights, strict=False).unexpected_keys
    return model.eval()


def reference_logits(model: Any, ids: list[int]) -> Logits:
    import torch

    with torch.no_grad():
        logits: Logits = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def reference_greedy(model: Any, ids: list[int], count: int) -> list[int]:
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(reference_logits(model, ids + answer)[-1].argmax()))
    return answer


def hold_to_transformers(source: Path, runner: OpenVINORunner) -> None:
    """Logits of the prompt in one step and token by token, and 24 greedy tokens."""
    model = reference(source)
    expected = reference_logits(model, PROMPT)
    assert abs(prefill(runner, PROMPT, blocks(runner, 70)) - expected[-1]).max() < EXACT_BOUND
    assert abs(decode(runner, PROMPT, blocks(runner, 70, first=3)) - expected).max() < EXACT_BOUND
    assert greedy(runner, PROMPT[:40], 24, blocks(runner, 64)) == reference_greedy(model, PROMPT[:40], 24)
