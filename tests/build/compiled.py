"""How tests compile a checkpoint and drive the real runner by hand, with neither scheduler nor sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import compile_engine
from conch_build.manifest import EngineManifest
from conch_build.plan import parse_plan
from tests.build.exports import info_of

Logits = NDArray[np.float32]

EXACT = {"precision": "f32", "kv_cache": {"size": "8MiB"}}
"""Arithmetic and cache in f32: what differs from transformers then is the order of additions alone."""


def compile_checkpoint(
    source: Path, out: Path, *, exported: Path | None = None, format: str = "none", cache: str = "f32", **engine: Any
) -> EngineManifest:
    """Compile `source`, or what was `exported` from it by quantization, into the new folder `out`."""
    settings = {"max_seq_len": 256, **EXACT, **engine}
    data = {
        "name": "tiny",
        "model": {"checkpoint": str(source)},
        "engine": settings,
        "quantization": {"format": format, "kv_cache": cache},
    }
    out.mkdir(parents=True)
    return compile_engine(exported or source, out, parse_plan(yaml.safe_dump(data)), info_of(source))


def blocks(runner: OpenVINORunner, tokens: int, first: int = 0) -> list[int]:
    """A table of neighbouring blocks that holds `tokens`."""
    return list(range(first, first - (-tokens // runner.tokens_per_block)))


def prefill(runner: OpenVINORunner, ids: Sequence[int], table: list[int], *, past: int = 0) -> Logits:
    """Logits [vocabulary] after `ids`, computed in one step behind `past` tokens."""
    rows = runner.step([Slot(list(ids), past, table, True)])
    assert rows is not None
    logits: Logits = rows.logits[0].copy()
    return logits


def decode(runner: OpenVINORunner, ids: Sequence[int], table: list[int], *, past: int = 0) -> Logits:
    """Logits [tokens, vocabulary] after each of `ids`, computed one a step."""
    return np.stack([prefill(runner, [token], table, past=past + index) for index, token in enumerate(ids)])


def greedy(runner: OpenVINORunner, prompt: Sequence[int], count: int, table: list[int]) -> list[int]:
    """The `count` best tokens that follow `prompt`: prompt in one step, then one a step."""
    answer: list[int] = []
    new, past = list(prompt), 0
    while len(answer) < count:
        rows = runner.step([Slot(new, past, table, True)])
        assert rows is not None
        past += len(new)
        new = [int(rows.top_ids[0, 0])]
        answer += new
    return answer
