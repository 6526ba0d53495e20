"""Quantization: what is written is what ModelOpt computed, packed, whole and readable by others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conch_build import quantize as quantize_module
from conch_build.errors import BuildError
from conch_build.families import linear_layers
from conch_build.quantize import deciding_settings, group_size, quantize
from conch_build.quantized import QUANTIZED_HEAD, check_export, producer, stored_group_size
from tests.build.exports import FORMATS, dequantized, info_of, read, settings
from tests.build.tiny import write_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

STORED = {
    "int8": torch.int8,
    "int8_sq": torch.int8,
    "int4_awq": torch.uint8,
    "fp8": torch.float8_e4m3fn,
}


def one_step(tensors: dict[str, Any], layer: str) -> float:
    """The widest distance between two neighbouring levels: 1 in integers, 32 at the top of e4m3."""
    levels = 32 if tensors[f"{layer}.weight"].dtype == torch.float8_e4m3fn else 1
    return float(tensors[f"{layer}.weight_scale"].max()) * levels


class Quantized:
    """One checkpoint in every format, with the weights that ModelOpt's own quantizers simulate."""

    def __init__(self, source: Path, root: Path) -> None:
        self.source, self.root, self.info = source, root, info_of(source)
        self.simulated: dict[str, dict[str, Any]] = {}

    def make(self, format: str, monkeypatch: pytest.MonkeyPatch) -> Path:
        from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

        out = self.root / format
        if out.exists():
            return out
        export = quantize_module._export

        def recording(model: Any, folder: Path) -> None:
            requantize_resmooth_fused_llm_layers(model)
            self.simulated[format] = {
                name: module.weight_quantizer(module.weight).detach().float()
                for name, module in model.named_modules()
                if hasattr(module, "weight_quantizer") and module.weight_quantizer.is_enabled
            }
            export(model, folder)

        monkeypatch.setattr(quantize_module, "_export", recording)
        out.mkdir()
        quantize(self.source, out, settings(format), self.info, log=self.root / "log")
        return out


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    root = tmp_path_factory.mktemp("quantized")
    return Quantized(write_tiny(root / "source", tie_word_embeddings=True), root)


@pytest.mark.parametrize("format", FORMATS)
def test_every_linear_layer_holds_the_values_that_modelopt_simulates(
    llama: Quantized, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = read(llama.make(format, monkeypatch))
    assert set(llama.simulated[format]) == set(linear_layers(llama.info))
    for layer, simulated in llama.simulated[format].items():
        assert tensors[f"{layer}.weight"].dtype == STORED[format]
        error = (dequantized(tensors, layer) - simulated).abs()
        # ModelOpt packs with another order of division: a value halfway between levels may go either way.
        assert (error > 1e-5 * simulated.abs() + 1e-6).float().mean() < 1e-3
        assert error.max() <= 1.01 * one_step(tensors, layer)


@pytest.mark.parametrize("format", FORMATS)
def test_a_layer_brings_the_scales_that_its_format_needs(
    llama: Quantized, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = read(llama.make(format, monkeypatch))
    shapes = {
        name.removeprefix("model.layers.0.self_attn."): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.self_attn.k_proj") or name.startswith("model.layers.0.self_attn.o_proj.pre")
    }
    expected: dict[str, dict[str, tuple[int, ...]]] = {
        "int8": {"k_proj.weight": (32, 64), "k_proj.weight_scale": (32,)},
        "int8_sq": {
            "k_proj.weight": (32, 64),
            "k_proj.weight_scale": (32,),
            "k_proj.pre_quant_scale": (64,),
            "k_proj.input_scale": (),
            "o_proj.pre_quant_scale": (64,),
        },
        "int4_awq": {
            "k_proj.weight": (16, 64),
            "k_proj.weight_scale": (32, 1),
            "o_proj.pre_quant_scale": (64,),
        },
        "fp8": {"k_proj.weight": (32, 64), "k_proj.weight_scale": (), "k_proj.input_scale": ()},
    }
    assert shapes == expected[format]


@pytest.mark.parametrize("format", FORMATS)
def test_the_result_is_a_unified_checkpoint_with_its_tokenizer(
    llama: Quantized, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = llama.make(format, monkeypatch)
    algorithm = {"int8": "W8A16", "int8_sq": "W8A8_SQ_PER_CHANNEL", "int4_awq": "W4A16_AWQ", "fp8": "FP8"}[format]
    config = json.loads((out / "config.json").read_text())
    stated = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert config["quantization_config"]["quant_method"] == "modelopt"
    assert stated["quant_algo"] == config["quantization_config"]["quant_algo"] == algorithm
    assert "lm_head" in stated["exclude_modules"]
    assert config["tie_word_embeddings"] is True
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (llama.source / name).read_bytes()
    assert "lm_head.weight" not in read(out)
    assert producer(out) is not None and producer(out).startswith("modelopt ")  # type: ignore[union-attr]
    assert stored_group_size(out) == (64 if format == "int4_awq" else None)


@pytest.mark.parametrize("format", ["int8", "int4_awq"])
def test_integer_formats_add_an_8_bit_head_beside_the_checkpoint(
    llama: Quantized, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    out = llama.make(format, monkeypatch)
    head = load_file(out / QUANTIZED_HEAD)
    embedding = read(llama.source)["model.embed_tokens.weight"]
    assert head["lm_head.weight"].dtype == torch.int8
    scale = embedding.abs().amax(dim=1) / 127
    torch.testing.assert_close(head["lm_head.weight_scale"], scale)
    rounded = (embedding / scale[:, None]).round()
    assert torch.equal(head["lm_head.weight"].float(), rounded)
    assert torch.equal(read(out)["model.embed_tokens.weight"], embedding)


def test_the_folded_scaling_of_awq_is_in_the_norms(llama: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, original = read(llama.make("int4_awq", monkeypatch)), read(llama.source)
    norm = "model.layers.0.input_layernorm.weight"
    folded = tensors[norm] / original[norm]
    weight = dequantized(tensors, "model.layers.0.self_attn.q_proj") * folded
    error = (weight - original["model.layers.0.self_attn.q_proj.weight"]).abs().max()
    assert not torch.equal(folded, torch.ones_like(folded))
    assert error < 0.6 * (tensors["model.layers.0.self_attn.q_proj.weight_scale"].max() * folded.max())


def test_what_is_not_quantized_keeps_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", "qwen2", dtype="bfloat16")
    out = tmp_path / "out"
    out.mkdir()
    quantize(source, out, settings("int8_sq"), info_of(source), log=tmp_path / "log")
    tensors, original = read(out), read(source)
    for name in ("model.norm.weight", "lm_head.weight", "model.layers.1.self_attn.q_proj.bias"):
        assert torch.equal(tensors[name], original[name])
    assert tensors["model.layers.0.mlp.up_proj.pre_quant_scale"].dtype == torch.bfloat16
    assert tensors["model.layers.0.mlp.up_proj.weight_scale"].dtype == torch.float32


def test_the_same_inputs_give_the_same_weights(llama: Quantized, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keys = {"calibration": {"data": "self", "samples": 4, "max_length": 32}}
        quantize(llama.source, tmp_path / name, settings("int8_sq", **keys), llama.info, log=tmp_path / "log")
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second


def test_none_passes_the_checkpoint_through(llama: Quantized, tmp_path: Path) -> None:
    quantize(llama.source, tmp_path, settings("none"), llama.info)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in llama.source.iterdir()}
    assert (tmp_path / "model.safetensors").samefile(llama.source / "model.safetensors")
    assert producer(tmp_path) is None


@pytest.mark.parametrize("format", ["nvfp4", "w4a8_awq"])
def test_a_format_for_gpus_is_refused_with_the_reason(llama: Quantized, tmp_path: Path, format: str) -> None:
    with pytest.raises(BuildError, match=f"{format} .*(CUDA|GPU)"):
        quantize(llama.source, tmp_path, settings(format), llama.info)


def test_an_export_without_packed_weights_is_refused(llama: Quantized, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="14 layers are not packed"):
        check_export(tmp_path, "int4_awq", llama.info)
    with pytest.raises(BuildError, match=r"model\.layers\.0\.self_attn\.q_proj first"):
        check_export(llama.source, "int4_awq", llama.info)


def test_the_group_is_the_largest_that_divides_every_width(tmp_path: Path) -> None:
    info = info_of(write_tiny(tmp_path / "model", hidden_size=96, intermediate_size=160, head_dim=32))
    assert group_size(settings("int4_awq"), info) == 32
    assert group_size(settings("int4_awq", group_size=16), info) == 16
    with pytest.raises(BuildError, match=r"groups of 64 .*down_proj: 160.*Sizes that fit: 32, 16"):
        group_size(settings("int4_awq", group_size=64), info)


def test_only_what_matters_to_a_format_decides_its_result(tmp_path: Path) -> None:
    text = tmp_path / "data.txt"
    text.write_text("one")
    calibrated = settings("fp8", calibration={"data": str(text)})
    before = deciding_settings(calibrated)
    text.write_text("two")
    assert deciding_settings(calibrated) != before
    assert deciding_settings(settings("int8", group_size=32)) == {"format": "int8"}
    assert deciding_settings(settings("int4_awq", group_size=32))["group_size"] == 32


def test_libraries_speak_to_the_log_only(llama: Quantized, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    quantize(llama.source, tmp_path / "out", settings("int8"), llama.info, log=tmp_path / "log")
    assert capfd.readouterr() == ("", "")
    assert "quantizers" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_the_real_sample_still_answers_sensibly_in_8_bits(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from conch_build.checkpoint import resolve
    from conch_build.plan import Model

    source = resolve(Model(checkpoint="sample"))
    quantize(source.path, tmp_path, settings("int8"), source.info, log=tmp_path / "log")
    tensors = read(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    for layer in linear_layers(source.info):
        model.get_submodule(layer).weight.data = dequantized(tensors, layer)
    answer = model.generate(prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
