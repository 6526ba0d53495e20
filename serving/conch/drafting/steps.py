"""How long steps take: the target's by the tokens it verifies, and the draft's. Measures, and decides nothing."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import compile_engine
from conch_build.draft import StepTimes
from conch_build.draft.report import LONGEST
from conch_build.inspection import inspect
from conch_build.manifest import EngineManifest
from conch_build.plan import Plan

CONTEXT = 128
"""Tokens before the ones that are timed: a short chat."""
STEPS = 25


def step_times(engine_folder: Path, plan: Plan, draft: Path) -> StepTimes:
    """Seconds of a step with one sequence, of the engine and of the `draft` when it is compiled for `plan`."""
    info, problems = inspect(draft)
    if info is None:
        raise problems[0]
    quantized_already = plan.quantization.model_copy(update={"format": "none"})
    plan = plan.model_copy(update={"quantization": quantized_already})
    by_tokens = _times(engine_folder, range(1, LONGEST + 2))
    with TemporaryDirectory() as folder:
        compile_engine(draft, Path(folder), plan, info)
        return StepTimes(_times(Path(folder), [1])[1], by_tokens)


def _times(engine_folder: Path, counts: list[int] | range) -> dict[int, float]:
    """By the number of tokens of one sequence that are verified in a step: the median of some steps."""
    manifest = EngineManifest.load(engine_folder)
    context = min(CONTEXT, manifest.max_seq_len - max(counts))
    table = list(range(-(-(context + max(counts)) // manifest.kv_cache.tokens_per_block)))
    runner = OpenVINORunner(engine_folder, manifest, len(table))
    found = {}
    for count in counts:
        slot = Slot([0] * count, context, table, rows=count, single=True)
        took = []
        for _ in range(STEPS):
            started = time.perf_counter()
            runner.step([slot])
            took.append(time.perf_counter() - started)
        found[count] = statistics.median(took)
    return found
