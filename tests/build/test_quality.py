"""What each format costs in quality on the sample model, compiled and run by the real runner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build import quantize as quantize_module
from conch_build.calibration import builtin_texts
from conch_build.checkpoint import Checkpoint, resolve
from conch_build.plan import Model
from conch_build.quantize import quantize
from tests.build.compiled import blocks, compile_checkpoint
from tests.build.exports import FORMATS, settings

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HELD_OUT = 16
"""The last built-in texts; calibration takes the first few."""
LENGTH = 96
CALIBRATION = {"samples": 16, "max_length": 128}


@pytest.fixture(scope="module")
def sample() -> Checkpoint:
    return resolve(Model(checkpoint="sample"))


@pytest.fixture(scope="module")
def texts(sample: Checkpoint) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sample.path)
    ids: list[list[int]] = [tokenizer(text)["input_ids"][:LENGTH] for text in builtin_texts()[-HELD_OUT:]]
    return ids


def transformers_perplexity(model: Any, texts: Sequence[list[int]]) -> float:
    losses: list[float] = []
    with torch.no_grad():
        for ids in texts:
            logits = model(torch.tensor([ids])).logits[0, :-1].float()
            losses += torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").tolist()
    return math.exp(float(np.mean(losses)))


def engine_perplexity(runner: OpenVINORunner, texts: Sequence[list[int]]) -> float:
    """All texts decode together, a token a step, as an engine serves them."""
    losses: list[float] = []
    per_text = -(-LENGTH // runner.tokens_per_block)
    tables = [blocks(runner, LENGTH, first=per_text * number) for number in range(len(texts))]
    for past in range(LENGTH - 1):
        live = [number for number, ids in enumerate(texts) if past + 1 < len(ids)]
        rows = runner.step([Slot([texts[n][past]], past, tables[n], True) for n in live])
        assert rows is not None
        for number, logits in zip(live, rows.logits.astype(np.float64), strict=True):
            best = logits.max()
            losses.append(best + math.log(np.exp(logits - best).sum()) - logits[texts[number][past + 1]])
    return math.exp(float(np.mean(losses)))


def simulated_perplexity(
    sample: Checkpoint, out: Path, format: str, texts: Sequence[list[int]], monkeypatch: pytest.MonkeyPatch
) -> float:
    """Quantize into `out`; the perplexity of ModelOpt's own model, which simulates the format in f32."""
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

    export, found = quantize_module._export, []

    def measuring(model: Any, folder: Path) -> None:
        stored = model.dtype
        requantize_resmooth_fused_llm_layers(model)  # export's first step: layers with one input share a scaling
        quantize_module._store_as(model, torch.float32)
        found.append(transformers_perplexity(model, texts))
        quantize_module._store_as(model, stored)
        export(model, folder)

    monkeypatch.setattr(quantize_module, "_export", measuring)
    out.mkdir()
    quantize(sample.path, out, settings(format, calibration=CALIBRATION), sample.info, log=out.with_suffix(".log"))
    return float(found[0])


@pytest.fixture(scope="module")
def original_perplexity(sample: Checkpoint, texts: list[list[int]]) -> float:
    from transformers import AutoModelForCausalLM

    return transformers_perplexity(AutoModelForCausalLM.from_pretrained(sample.path, dtype=torch.float32), texts)


@pytest.mark.parametrize("format", ["none", *FORMATS])
def test_an_engine_is_as_good_as_the_quantized_model_it_was_made_from(
    sample: Checkpoint,
    texts: list[list[int]],
    original_perplexity: float,
    format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exported, simulated = sample.path, original_perplexity
    if format != "none":
        exported = tmp_path / "exported"
        simulated = simulated_perplexity(sample, exported, format, texts, monkeypatch)
    engine: dict[str, Any] = {"precision": "auto", "cache": "auto", "kv_cache": {"size": "64MiB"}}
    manifest = compile_checkpoint(sample.path, tmp_path / "engine", exported=exported, format=format, **engine)
    compiled = engine_perplexity(OpenVINORunner(tmp_path / "engine", manifest), texts)
    with capsys.disabled():
        print(
            f"\n{format:8}  {manifest.precision:4}  perplexity: unquantized {original_perplexity:.2f}  "
            f"ModelOpt's simulation {simulated:.2f} ({simulated / original_perplexity - 1:+.1%})  "
            f"engine {compiled:.2f} ({compiled / simulated - 1:+.2%} of the simulation)"
        )
    assert compiled == pytest.approx(simulated, rel=0.01)
