"""The compiler held to transformers: every family, every format, through the real runner."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine import Slot
from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import MODEL_FILE
from conch_build.errors import CheckpointError, CompileError
from conch_build.families import linear_layers
from conch_build.manifest import EngineManifest
from conch_build.quantize import quantize
from conch_build.quantized import QUANTIZED_HEAD
from tests.build.compiled import Logits, blocks, compile_checkpoint, decode
from tests.build.conftest import EditJson
from tests.build.exports import FORMATS, dequantized, info_of, read, settings
from tests.build.reference import (
    EXACT_BOUND,
    PROMPT,
    hold_to_transformers,
    reference,
    reference_logits,
)
from tests.build.tiny import Family, write_tiny

torch = pytest.importorskip("torch")
ov = pytest.importorskip("openvino")

WITH_HEAD = ("int8", "int4_awq")
"""Formats with an 8-bit lm_head."""

SMALLEST = 32 * 64
"""Elements of the smallest linear layer, k_proj."""

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def runner_of(source: Path, out: Path, **how: Any) -> OpenVINORunner:
    return OpenVINORunner(out, compile_checkpoint(source, out, **how))


# --- families, unquantized


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 32}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"rope_scaling": LLAMA3}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32}}),
        ("mistral", {}),
        ("mistral", {"sliding_window": 20, "head_dim": 32}),
        ("mistral", {"sliding_window": 32}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
        ("qwen3", {"head_dim": 32}),
        ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, family: Family, config: dict[str, Any]
) -> None:
    source = write_tiny(tmp_path / "source", family, **config)
    hold_to_transformers(source, runner_of(source, tmp_path / "engine"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_weights_stay_as_they_are(tmp_path: Path, dtype: Any) -> None:
    source = write_tiny(tmp_path / "source", dtype=dtype)
    runner = runner_of(source, tmp_path / "engine")
    expected = reference_logits(reference(source), PROMPT)
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - expected).max() < EXACT_BOUND
    assert set(constant_types(tmp_path / "engine", smallest=SMALLEST)) == {"bf16" if dtype == "bfloat16" else "f16"}


def test_shards_are_read_by_the_index_and_other_files_beside_them_are_not(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", shard_bytes=60_000)
    write_tiny(tmp_path / "other", seed=1)
    (tmp_path / "other" / "model.safetensors").rename(source / "zzz.safetensors")
    runner = runner_of(source, tmp_path / "engine")
    expected = reference_logits(reference(source), PROMPT)
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - expected).max() < EXACT_BOUND


@pytest.mark.parametrize("seed", [0, 1], ids=["equal", "different"])
def test_a_tied_head_is_the_embedding_whatever_else_is_in_the_file(tmp_path: Path, seed: int) -> None:
    from safetensors.torch import load_file, save_file

    source = write_tiny(tmp_path / "source", tie_word_embeddings=True)
    expected = reference_logits(reference(source), PROMPT)
    tensors = load_file(source / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.roll(seed, 0).contiguous()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    runner = runner_of(source, tmp_path / "engine")
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - expected).max() < EXACT_BOUND
    sizes = [(tmp_path / "engine" / "model.bin").stat().st_size, (source / "model.safetensors").stat().st_size]
    tables = 2 * 256 * 16 * 4
    assert sizes[0] - tables < sizes[1] - embedding.nbytes + 10_000, "head and embedding are stored once"


def test_rope_parameters_of_later_transformers_are_understood(tmp_path: Path, edit_json: EditJson) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    source = write_tiny(tmp_path / "source", rope_theta=500.0, rope_scaling=scaling)
    expected = reference_logits(reference(source), PROMPT)
    edit_json(
        source / "config.json", rope_theta=..., rope_scaling=..., rope_parameters={**scaling, "rope_theta": 500.0}
    )
    runner = runner_of(source, tmp_path / "engine")
    assert abs(decode(runner, PROMPT, blocks(runner, 70)) - expected).max() < EXACT_BOUND


def test_the_best_candidates_come_sorted_and_are_those_of_the_row(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source")
    manifest = compile_checkpoint(source, tmp_path / "engine")
    runner = OpenVINORunner(tmp_path / "engine", manifest)
    rows = runner.step([Slot(PROMPT, 0, [0, 1, 2], True), Slot(PROMPT[:9], 0, [3], True)])
    assert rows is not None
    assert rows.top_ids.shape == (2, manifest.top_candidates) and rows.logits.shape == (2, 320)
    for ids, best, logits in zip(rows.top_ids, rows.top_logits, rows.logits, strict=True):
        assert np.array_equal(np.sort(logits)[::-1][: len(best)], best)
        assert np.array_equal(logits[ids], best)


# --- formats


class Compiled:
    """One tiny checkpoint: quantized and compiled in every format, each once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = write_tiny(root / "source", "qwen2", dtype="bfloat16", seed=1)
        self.info = info_of(self.source)

    def exported(self, format: str) -> Path:
        out = self.root / format
        if not out.exists():
            out.mkdir()
            quantize(self.source, out, settings(format), self.info, log=self.root / "log")
        return out

    def engine(self, format: str) -> Path:
        out = self.root / f"{format}-engine"
        if not out.exists():
            compile_checkpoint(self.source, out, exported=self.exported(format), format=format)
        return out

    def runner(self, format: str) -> OpenVINORunner:
        return OpenVINORunner(self.engine(format), EngineManifest.load(self.engine(format)))

    def tensors(self, format: str) -> dict[str, Any]:
        """What was exported, with Conch's own head where there is one."""
        from safetensors.torch import load_file

        folder = self.exported(format)
        head = load_file(folder / QUANTIZED_HEAD) if (folder / QUANTIZED_HEAD).exists() else {}
        return {**read(folder), **head}

    def reference(self, format: str) -> Any:
        """transformers with the weights that the export stands for, and its static activations."""
        tensors = self.tensors(format)
        layers = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
        suffixes = (".weight_scale", ".input_scale", ".pre_quant_scale")
        weights = {name: tensor.float() for name, tensor in tensors.items() if not name.endswith(suffixes)}
        weights.update({f"{layer}.weight": dequantized(tensors, layer) for layer in layers})
        model = reference(self.source, weights)
        for layer in layers:
            scale, step = tensors.get(f"{layer}.pre_quant_scale"), tensors.get(f"{layer}.input_scale")
            model.get_submodule(layer).register_forward_pre_hook(_input_hook(scale, step, fp8=format == "fp8"))
        return model


def _input_hook(scale: Any, step: Any, *, fp8: bool) -> Any:
    def hook(module: Any, inputs: tuple[Any]) -> tuple[Any]:
        x = inputs[0] if scale is None else inputs[0] * scale.float()
        if step is None:
            return (x,)
        if fp8:  # by way of f16, as OpenVINO rounds
            return ((x / step).clamp(-448, 448).half().to(torch.float8_e4m3fn).float() * step,)
        return ((x / step).round().clamp(-128, 127) * step,)

    return hook


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("formats"))


def graph(engine: Path) -> Any:
    return ov.Core().read_model(engine / MODEL_FILE)


def constant_types(engine: Path, *, smallest: int = 0) -> list[str]:
    """Element types of the constants of at least so many elements, rope tables aside."""
    model = graph(engine)
    found = [node.output(0) for node in model.get_ops() if node.get_type_name() == "Constant"]
    rope = ov.Shape([256, 16])
    return [
        each.get_element_type().get_type_name()
        for each in found
        if each.get_shape() != rope and np.prod(each.get_shape()) >= smallest
    ]


def linear_weights(engine: Path) -> list[Logits]:
    """What each MatMul of the stored graph multiplies with, [out, in], as OpenVINO itself evaluates it."""
    model = graph(engine)
    matmuls = [node for node in model.get_ops() if node.get_type_name() == "MatMul"]
    weights = ov.Model([ov.opset15.result(node.input_value(1)) for node in matmuls], [])
    values = ov.Core().compile_model(weights, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({})
    return [values[index] * output_scale(node) for index, node in enumerate(matmuls)]


def output_scale(matmul: Any) -> Any:
    """A scale of the whole tensor that is applied behind the multiplication; 1 where there is none."""
    consumers = [port.get_node() for port in matmul.output(0).get_target_inputs()]
    factors = [
        port.get_node() for node in consumers if node.get_type_name() == "Multiply" for port in node.input_values()
    ]
    return next((node.data.reshape(()) for node in factors if node.get_type_name() == "Constant"), np.float32(1))


@pytest.mark.parametrize("format", FORMATS)
def test_the_engine_holds_exactly_the_weights_that_were_exported(tiny: Compiled, format: str) -> None:
    tensors, compiled = tiny.tensors(format), linear_weights(tiny.engine(format))
    assert len(compiled) == 15
    for layer in [*linear_layers(tiny.info), *(["lm_head"] if format in WITH_HEAD else [])]:
        expected = dequantized(tensors, layer).numpy()
        assert any(np.array_equal(expected, weight) for weight in compiled), layer


@pytest.mark.parametrize(
    ("format", "packed"),
    # Beside the 14 linear layers: the 8-bit head of the integer formats; head and embedding of fp8, kept in bf16.
    [("int8", {"i8": 15}), ("int8_sq", {"i8": 14}), ("int4_awq", {"i4": 14, "i8": 1}), ("fp8", {"bf16": 16})],
)
def test_weights_stay_packed_in_the_engine(tiny: Compiled, format: str, packed: dict[str, int]) -> None:
    types = Counter(constant_types(tiny.engine(format), smallest=SMALLEST))
    assert {kind: types[kind] for kind in packed} == packed
    assert set(types) == {*packed, "bf16"}, "no copy in another type"


@pytest.mark.parametrize(("format", "multiplied"), [("int8", "i8"), ("int8_sq", "i8"), ("int4_awq", "i4")])
def test_kernels_multiply_with_the_packed_weights(tiny: Compiled, format: str, multiplied: str) -> None:
    network = tiny.runner(format)._request.get_compiled_model().get_runtime_model()
    kernels = [node for node in network.get_ops() if node.get_rt_info()["layerType"].value == "FullyConnected"]
    types = [kernel.get_input_element_type(1).get_type_name() for kernel in kernels]
    assert types.count(multiplied) == (15 if format == "int8" else 14)


@pytest.mark.parametrize("format", FORMATS)
def test_a_quantized_engine_computes_what_its_weights_stand_for(tiny: Compiled, format: str) -> None:
    runner = tiny.runner(format)
    expected = reference_logits(tiny.reference(format), PROMPT)
    error = abs(decode(runner, PROMPT, blocks(runner, 70)) - expected)
    if format in ("int8", "int4_awq"):
        # The kernels round activations to 8 bits in groups of 32 as they multiply: 2% here.
        assert np.sqrt((error**2).mean()) < 0.04 * expected.std()
    else:
        # Exact until an activation halfway between two int8 levels rounds the other way.
        assert np.quantile(error.max(axis=1), 0.1) < EXACT_BOUND
        assert np.sqrt((error**2).mean()) < 0.02 * expected.std()


@pytest.mark.parametrize("format", FORMATS)
def test_the_manifest_tells_how_the_engine_was_quantized(tiny: Compiled, format: str) -> None:
    quantization = EngineManifest.load(tiny.engine(format)).quantization
    assert quantization.format == format
    assert quantization.group_size == (64 if format == "int4_awq" else None)
    assert str(quantization.producer).startswith("modelopt ")


# --- choices and refusals


@pytest.mark.parametrize(
    ("asked", "precision", "cache"),
    [
        ({"precision": "auto", "cache": "f32"}, "f32", "f32"),
        ({"precision": "auto", "cache": "bf16"}, "bf16", "bf16"),
        ({"precision": "f32", "cache": "auto"}, "f32", "u8"),
    ],
)
def test_precision_follows_the_type_of_the_cache(
    tiny_llama: Path, tmp_path: Path, asked: dict[str, Any], precision: str, cache: str
) -> None:
    manifest = compile_checkpoint(tiny_llama, tmp_path / "engine", **asked)
    assert (manifest.precision, manifest.kv_cache.dtype) == (precision, cache)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope scaling `dynamic` is not supported"),
        ({"type": "longrope", "factor": 2.0}, "rope scaling `longrope` lacks 'long_factor'"),
        ({"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [], "factor": 2.0}, "of another head size"),
        ({"rope_type": "linear"}, "rope scaling `linear` lacks 'factor'"),
    ],
)
def test_rope_scaling_that_cannot_be_compiled_is_refused(
    checkpoint: Path, tmp_path: Path, edit_json: EditJson, scaling: dict[str, Any], words: str
) -> None:
    edit_json(checkpoint / "config.json", rope_scaling=scaling)
    with pytest.raises(CheckpointError, match=words):
        compile_checkpoint(checkpoint, tmp_path / "engine")


@pytest.mark.parametrize("tensor", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(checkpoint: Path, tiny_llama: Path, tmp_path: Path, tensor: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"tensor `{tensor}` is missing"):
        compile_checkpoint(tiny_llama, tmp_path / "engine", exported=checkpoint)


def test_a_graph_that_openvino_refuses_is_a_compile_error(checkpoint: Path, tiny_llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(64, 100)
    save_file(tensors, checkpoint / "model.safetensors")
    with pytest.raises(CompileError, match="OpenVINO refused the graph") as refused:
        compile_checkpoint(tiny_llama, tmp_path / "engine", exported=checkpoint)
    assert refused.value.where == str(checkpoint)
