"""LoRA in the compiled graph: PEFT's own merged model is what each adapter must give, whoever is served beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.adapter_registry import AdapterRegistry, register
from conch_build.adapters import adaptable_layers
from conch_build.compile.openvino import MODEL_FILE
from conch_build.compile.openvino.attention import load_model
from conch_build.compile.openvino.lora import linear_layers
from conch_build.machine import has_bf16
from conch_build.plan import Lora
from conch_build.quantize import quantize
from tests.build.compiled import Logits, blocks, compile_checkpoint
from tests.build.exports import FORMATS, info_of, settings
from tests.build.reference import EXACT_BOUND, PROMPT, reference, reference_logits
from tests.build.tiny import Family, write_tiny
from tests.build.tiny_adapter import merged, write_adapter

pytest.importorskip("openvino")
pytest.importorskip("peft")

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
BATCH = [40, 7, 128, 64, 33]


class Loaded:
    """An engine with adapters in its slots, in the order in which they were given."""

    def __init__(self, source: Path, folder: Path, *adapters: Path, exported: Path | None = None, **how: Any) -> None:
        self.source = source
        self.manifest = compile_checkpoint(source, folder, exported=exported, **how)
        named = {f"adapter{number}": str(path) for number, path in enumerate(adapters)}
        registry = register(Lora(adapters=named, max_loaded=8), info_of(source))
        assert isinstance(registry, AdapterRegistry)
        self.runner = OpenVINORunner(folder, self.manifest, adapters=registry)
        assert self.runner.lora is not None
        for row, path in enumerate(adapters, 1):
            self.runner.lora.install(row, self.runner.lora.read(path))

    def step(self, *slots: tuple[list[int], int], past: int = 0) -> list[Logits]:
        """The last logits of each (tokens, adapter), computed together."""
        tables = [blocks(self.runner, 160, first=6 * number) for number in range(len(slots))]
        asked = [Slot(ids, past, table, 1, adapter=row) for (ids, row), table in zip(slots, tables, strict=True)]
        rows = self.runner.step(asked)
        assert rows is not None
        return [row.copy() for row in rows.logits]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "source")


# --- the same as PEFT


@pytest.mark.parametrize(
    "config",
    [
        *({"target_modules": [module]} for module in EVERY),
        {"target_modules": EVERY, "r": 16, "use_rslora": True},
        {"target_modules": "all-linear", "lora_alpha": 3},
        {"target_modules": r".*layers\.1\..*(q|down)_proj"},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1], "exclude_modules": ["up_proj"]},
        {
            "target_modules": EVERY,
            "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 5},
            "alpha_pattern": {"v_proj": 1},
        },
    ],
    ids=str,
)
def test_logits_are_those_of_the_merged_model(tiny: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    adapter = write_adapter(tiny, tmp_path / "adapter", **config)
    engine = Loaded(tiny, tmp_path / "engine", adapter)
    with_it, without = engine.step((PROMPT, 1), (PROMPT, 0))
    assert abs(with_it - reference_logits(merged(tiny, adapter), PROMPT)[-1]).max() < EXACT_BOUND
    assert abs(without - reference_logits(reference(tiny), PROMPT)[-1]).max() < EXACT_BOUND
    assert abs(with_it - without).max() > 0.01


@pytest.mark.parametrize(
    "family", ["gemma2", "gemma3_text", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"]
)
def test_every_family_takes_adapters_for_all_its_linear_layers(tmp_path: Path, family: Family) -> None:
    source = write_tiny(tmp_path / "source", family)
    modules = sorted({name.rpartition(".")[2] for name in adaptable_layers(info_of(source))} - {"lm_head"})
    adapter = write_adapter(source, tmp_path / "adapter", target_modules=modules)
    engine = Loaded(source, tmp_path / "engine", adapter)
    with_it, without = engine.step((PROMPT, 1), (PROMPT, 0))
    assert abs(with_it - reference_logits(merged(source, adapter), PROMPT)[-1]).max() < 3 * EXACT_BOUND
    assert abs(without - reference_logits(reference(source), PROMPT)[-1]).max() < EXACT_BOUND
    graph = linear_layers(load_model(tmp_path / "engine" / MODEL_FILE, engine.manifest))
    expected = adaptable_layers(info_of(source))
    assert {name: graph[name] for name in expected} == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_adapters_in_sixteen_bits_are_read_as_they_are(tiny: Path, tmp_path: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    adapter = write_adapter(tiny, tmp_path / "adapter")
    weights = adapter / "adapter_model.safetensors"
    save_file({name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(weights).items()}, weights)
    (with_it,) = Loaded(tiny, tmp_path / "engine", adapter).step((PROMPT, 1))
    assert abs(with_it - reference_logits(merged(tiny, adapter), PROMPT)[-1]).max() < EXACT_BOUND


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_an_adapter_adds_the_same_to_quantized_weights(tiny: Path, tmp_path: Path, format: str) -> None:
    exported = tmp_path / "exported"
    exported.mkdir()
    quantize(tiny, exported, settings(format), info_of(tiny))
    adapter = write_adapter(tiny, tmp_path / "adapter", target_modules=EVERY[:-1])
    engine = Loaded(tiny, tmp_path / "engine", adapter, exported=exported, format=format)
    with_it, without = engine.step((PROMPT, 1), (PROMPT, 0))
    added = reference_logits(merged(tiny, adapter), PROMPT)[-1] - reference_logits(reference(tiny), PROMPT)[-1]
    assert np.corrcoef(with_it - without, added)[0, 1] > 0.9


# --- several in one step


@pytest.mark.parametrize(
    "how",
    [{"cache": "f32"}, {"cache": "u8"}, {"cache": "u8", "precision": "bf16"}, {"cache": "bf16", "precision": "bf16"}],
    ids=str,
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_nobody_s_numbers_depend_on_who_else_is_served(tmp_path: Path, family: Family, how: dict[str, Any]) -> None:
    if how.get("precision") == "bf16" and not has_bf16():
        pytest.skip("this CPU has no bf16 arithmetic")
    source = write_tiny(tmp_path / "source", family, dtype="bfloat16")
    modules = sorted({name.rpartition(".")[2] for name in adaptable_layers(info_of(source))})
    adapters = [
        write_adapter(source, tmp_path / str(seed), seed=seed, r=rank, target_modules=targets)
        for seed, rank, targets in ((1, 8, modules), (2, 3, modules[:2]), (3, 16, modules))
    ]
    engine = Loaded(source, tmp_path / "engine", *adapters, **how)
    plain = OpenVINORunner(tmp_path / "engine", engine.manifest)
    rng = np.random.default_rng(0)
    rows = [0, 1, 0, 2, 3]
    for length in (None, 1):
        prompts = [rng.integers(3, 320, length or size).tolist() for size in BATCH]
        together = engine.step(*zip(prompts, rows, strict=True))
        for prompt, row, got in zip(prompts, rows, together, strict=True):
            assert np.array_equal(got, engine.step((prompt, row))[0]), row
        if how.get("precision") != "bf16":
            got = plain.step([Slot(prompts[0], 0, blocks(plain, 160), 1)])
            assert got is not None and np.array_equal(got.logits[0], together[0])


@pytest.mark.parametrize("how", [{"cache": "u8"}, {"cache": "u8", "precision": "bf16"}], ids=str)
def test_nobody_s_numbers_depend_on_which_other_adapters_are_loaded(
    tiny: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    if how.get("precision") == "bf16" and not has_bf16():
        pytest.skip("this CPU has no bf16 arithmetic")
    adapters = [
        write_adapter(tiny, tmp_path / str(seed), seed=seed, r=rank, target_modules=EVERY)
        for seed, rank in ((1, 8), (2, 3), (3, 16), (4, 12))
    ]
    alone = Loaded(tiny, tmp_path / "alone", adapters[1], **how)
    beside = Loaded(tiny, tmp_path / "engine", *adapters, **how)
    for prompt in (PROMPT, PROMPT[:5], PROMPT[:1]):
        assert np.array_equal(alone.step((prompt, 1))[0], beside.step((prompt, 2))[0])


def test_a_step_that_needs_no_adapter_does_not_even_need_the_network_with_slots(tiny: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tiny, tmp_path / "adapter")
    manifest = compile_checkpoint(tiny, tmp_path / "engine")
    runner = OpenVINORunner(
        tmp_path / "engine", manifest, adapters=register(Lora(adapters={"a": str(adapter)}), info_of(tiny))
    )
    rows = runner.step([Slot(PROMPT, 0, blocks(runner, 70), 1)])
    assert rows is not None
    assert abs(rows.logits[0] - reference_logits(reference(tiny), PROMPT)[-1]).max() < EXACT_BOUND


def test_keys_of_both_networks_are_in_the_same_memory(tiny: Path, tmp_path: Path) -> None:
    engine = Loaded(tiny, tmp_path / "engine", write_adapter(tiny, tmp_path / "adapter"))
    (alone,) = engine.step(([*PROMPT[:64], 5], 0))
    engine.step((PROMPT[:64], 0), (PROMPT, 1))
    assert abs(engine.step(([5], 0), past=64)[0] - alone).max() < EXACT_BOUND


def test_a_row_that_gets_a_smaller_adapter_keeps_nothing_of_the_larger(tiny: Path, tmp_path: Path) -> None:
    large = write_adapter(tiny, tmp_path / "large", r=16, target_modules=EVERY)
    small = write_adapter(tiny, tmp_path / "small", r=2, target_modules=["q_proj"])
    engine, alone = Loaded(tiny, tmp_path / "engine", large), Loaded(tiny, tmp_path / "alone", small)
    assert engine.runner.lora is not None
    engine.runner.lora.install(1, engine.runner.lora.read(small))
    assert np.array_equal(engine.step((PROMPT, 1))[0], alone.step((PROMPT, 1))[0])
