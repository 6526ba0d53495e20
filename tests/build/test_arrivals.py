"""Checkpoints that arrive quantized: compiled as they are, or refused by the key that cannot be.

Logits are held to transformers with the weights that the packed ones stand for: AutoAWQ's and GPTQ's loaders need
libraries that do not install beside this one, and transformers knows nothing of ModelOpt's layout.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.engine.runner import OpenVINORunner
from conch_build.compile.openvino import MODEL_FILE
from conch_build.compile.openvino.layouts import LAYOUTS
from conch_build.errors import CheckpointError
from conch_build.manifest import EngineManifest
from conch_build.pipeline import build
from conch_build.plan import Quantization
from conch_build.preflight import check
from conch_build.quantize import quantize
from conch_build.quantized import QUANTIZED_HEAD
from conch_build.store import Store
from tests.build.arrivals import (
    Array,
    Packer,
    awq,
    float_quantized,
    gptq,
    int_quantized,
    pack_quantized,
    scheme,
    write_arrival,
)
from tests.build.compiled import blocks, compile_checkpoint, decode
from tests.build.conftest import EditJson
from tests.build.exports import FORMATS, info_of, settings
from tests.build.refusals import refusal
from tests.build.test_preflight import found, found_for, plan_for
from tests.build.tiny import write_tiny

torch = pytest.importorskip("torch")
ov = pytest.importorskip("openvino")

PROMPT = np.random.default_rng(0).integers(3, 320, 40).tolist()
STEP = 0.03
"""Of static int8 activations: the largest ones here are 3 to 4."""

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True, "dynamic": False}
BY_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}

one = partial(np.full, 1)
fp8_step = one(0.01, np.float32)
int8_step = one(STEP, np.float32)


def static(x: Any, step: float = STEP, zero: int = 0) -> Any:
    return ((x / step + zero).round().clamp(-128, 127) - zero) * step


def fp8(x: Any, step: Any) -> Any:
    """By way of f16, as OpenVINO rounds: one value in 250 goes to the other neighbour."""
    return (x / step).clamp(-448, 448).half().to(torch.float8_e4m3fn).float() * step


INTEGER: list[Any] = [
    pytest.param(awq(), AWQ, "u4", id="awq"),
    pytest.param(awq(-1), {**AWQ, "group_size": -1}, "u4", id="awq, whole rows"),
    pytest.param(gptq(), GPTQ, "i4", id="gptq"),
    pytest.param(gptq(symmetric=False), {**GPTQ, "sym": False}, "u4", id="gptq, zero points"),
    pytest.param(
        gptq(symmetric=False, version=2), {**GPTQ, "checkpoint_format": "gptq_v2"}, "u4", id="gptq, second version"
    ),
    pytest.param(gptq(group=-1), {**GPTQ, "group_size": -1}, "i4", id="gptq, whole rows"),
    pytest.param(gptq(8), {**GPTQ, "bits": 8}, "i8", id="gptq, 8 bits"),
    pytest.param(gptq(8, symmetric=False), {**GPTQ, "bits": 8}, "u8", id="gptq, 8 bits with zero points"),
    pytest.param(gptq(shuffled=True), {**GPTQ, "desc_act": True}, "i4", id="gptq, columns out of order"),
    pytest.param(pack_quantized(), scheme("pack-quantized", INT4), "i4", id="packed int4"),
    pytest.param(
        pack_quantized(symmetric=False),
        scheme("pack-quantized", {**INT4, "symmetric": False}),
        "u4",
        id="packed int4, zero points",
    ),
    pytest.param(
        pack_quantized(8, symmetric=False, zeros_in_words=False),
        scheme("pack-quantized", {**INT4, "num_bits": 8, "symmetric": False}),
        "u8",
        id="packed int8, zero points beside",
    ),
    pytest.param(
        pack_quantized(group=-1),
        scheme("pack-quantized", {**INT4, "strategy": "channel", "group_size": None}),
        "i4",
        id="packed int4 by channel",
    ),
    pytest.param(
        pack_quantized(shuffled=True),
        scheme("pack-quantized", {**INT4, "actorder": "group"}),
        "i4",
        id="packed int4, columns out of order",
    ),
    pytest.param(int_quantized(), scheme("int-quantized", INT8), "i8", id="int8 weights"),
    pytest.param(
        int_quantized(None), scheme("naive-quantized", {**INT8, "strategy": "tensor"}), "i8", id="int8 by tensor"
    ),
    pytest.param(
        int_quantized(symmetric=False),
        scheme("int-quantized", {**INT8, "symmetric": False}),
        "u8",
        id="int8 with zero points",
    ),
    pytest.param(int_quantized(), scheme("int-quantized", INT8, BY_TOKEN), "i8", id="int8, inputs by token"),
]
"""Integers that the kernels multiply with inputs they round themselves: packer, config, type in memory."""

ROUNDED: list[Any] = [
    pytest.param(
        int_quantized(inputs={"input_scale": int8_step}),
        scheme("int-quantized", INT8, STATIC),
        static,
        id="int8, static inputs",
    ),
    pytest.param(
        int_quantized(inputs={"input_scale": int8_step, "input_zero_point": one(-9, np.int8)}),
        scheme("int-quantized", INT8, {**STATIC, "symmetric": False}),
        partial(static, zero=-9),
        id="int8, static inputs with a zero point",
    ),
    pytest.param(
        float_quantized(channel=False, inputs={"input_scale": fp8_step}),
        scheme("float-quantized", FP8, {**STATIC, "type": "float"}),
        partial(fp8, step=0.01),
        id="fp8, static inputs",
    ),
    pytest.param(
        float_quantized(channel=True),
        scheme("float-quantized", {**FP8, "strategy": "channel"}, {**BY_TOKEN, "type": "float"}),
        lambda x: fp8(x, x.abs().amax(-1, keepdim=True) / 448),
        id="fp8, inputs by token",
    ),
    pytest.param(float_quantized(channel=False), scheme("naive-quantized", FP8), lambda x: x, id="fp8 weights"),
]
"""Inputs rounded by rule: packer, config, the rule."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("arrivals") / "dense", "qwen2", seed=3)


@pytest.fixture(scope="module")
def packed(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPTQ checkpoint. Shared: do not write to it."""
    out = tmp_path_factory.mktemp("arrivals") / "packed"
    write_arrival(dense, out, {"": gptq()}, GPTQ)
    return out


def reference_logits(dense: Path, meant: Mapping[str, Array], rule: Any = None) -> Array:
    """transformers with the weights `meant`, and with the inputs of these layers rounded by `rule`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager")
    weights = {f"{layer}.weight": torch.tensor(weight) for layer, weight in meant.items()}
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    if rule is not None:
        for layer in meant:
            model.get_submodule(layer).register_forward_pre_hook(lambda module, inputs: (rule(inputs[0]),))
    with torch.no_grad():
        logits: Array = model(torch.tensor([PROMPT])).logits[0].numpy()
    return logits


def compiled_weights(engine: Path) -> dict[str, Array]:
    """Layer -> weight [out, in] in the order of the layer's inputs, as OpenVINO evaluates the stored graph."""
    stored = ov.Core().read_model(engine / MODEL_FILE)
    matmuls = {node.get_friendly_name(): node for node in stored.get_ops() if node.get_type_name() == "MatMul"}
    model = ov.Model([ov.opset15.result(node.input_value(1)) for node in matmuls.values()], [])
    values = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({})
    found = {}
    for index, (name, node) in enumerate(matmuls.items()):
        weight = values[index]
        behind = [port.get_node() for port in node.output(0).get_target_inputs()]
        for each in (each for each in behind if each.get_friendly_name() == f"{name}/scale"):
            weight = weight * each.input_value(1).get_node().data.reshape(-1, 1)
        before = node.input_value(0).get_node()
        if before.get_friendly_name() == f"{name}/input_order":
            weight = weight[:, np.argsort(before.input_value(1).get_node().data)]
        found[name] = weight
    return found


def kernel_types(runner: OpenVINORunner) -> set[str]:
    """Types of the weights that the kernels of the layers multiply with; the head, which is dense, aside."""
    network = runner._request.get_compiled_model().get_runtime_model()
    kernels = [node for node in network.get_ops() if node.get_rt_info()["layerType"].value == "FullyConnected"]
    types = [kernel.get_input_element_type(1).get_type_name() for kernel in kernels]
    types.remove("f32")
    return set(types)


def rms(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


# --- compiled as they are


@pytest.mark.parametrize(("packer", "config", "kind"), INTEGER)
def test_integers_are_compiled_as_they_came_and_answer_alike(
    dense: Path, tmp_path: Path, packer: Packer, config: dict[str, Any], kind: str
) -> None:
    meant = write_arrival(dense, tmp_path / "packed", {"": packer}, config)
    manifest = compile_checkpoint(tmp_path / "packed", tmp_path / "engine")
    weights = compiled_weights(tmp_path / "engine")
    assert len(meant) == 14
    for layer, weight in meant.items():
        assert np.array_equal(weights[layer], weight), layer
    runner = OpenVINORunner(tmp_path / "engine", manifest)
    assert kernel_types(runner) == {kind}
    expected = reference_logits(dense, meant)
    # The kernels round inputs to 8 bits in groups of 32 as they multiply.
    assert rms(decode(runner, PROMPT, blocks(runner, 40)) - expected) < 0.04 * expected.std()


@pytest.mark.parametrize(("packer", "config", "rule"), ROUNDED)
def test_inputs_are_rounded_by_the_checkpoints_own_rule(
    dense: Path, tmp_path: Path, packer: Packer, config: dict[str, Any], rule: Any
) -> None:
    meant = write_arrival(dense, tmp_path / "packed", {"": packer}, config)
    runner = OpenVINORunner(tmp_path / "engine", compile_checkpoint(tmp_path / "packed", tmp_path / "engine"))
    weights = compiled_weights(tmp_path / "engine")
    for layer, weight in meant.items():
        assert np.allclose(weights[layer], weight, rtol=1e-6, atol=0), layer
    expected, plain = reference_logits(dense, meant, rule), reference_logits(dense, meant)
    got = decode(runner, PROMPT, blocks(runner, 40))
    # Exact until a value halfway between two steps rounds the other way.
    assert rms(got - expected) < max(0.35 * rms(plain - expected), 1e-5)


def test_layers_may_be_quantized_by_different_schemes_or_not_at_all(dense: Path, tmp_path: Path) -> None:
    config = scheme("mixed-precision", INT8, ignore=["lm_head", "re:.*down_proj", "model.layers.1.self_attn.o_proj"])
    mlp = {"targets": ["re:.*mlp.*"], "weights": INT4, "format": "pack-quantized"}
    config["config_groups"]["group_0"]["format"] = "int-quantized"
    config["config_groups"]["group_1"] = mlp
    meant = write_arrival(
        dense,
        tmp_path / "packed",
        {"gate_proj": pack_quantized(), "up_proj": pack_quantized(), "": int_quantized()},
        config,
        dense=["down_proj", "layers.1.self_attn.o_proj"],
    )
    compile_checkpoint(tmp_path / "packed", tmp_path / "engine")
    weights = compiled_weights(tmp_path / "engine")
    assert len(meant) == 11
    for layer, weight in meant.items():
        assert np.array_equal(weights[layer], weight), layer


def test_borrows_between_zero_points_of_gptq_are_given_back(dense: Path, tmp_path: Path) -> None:
    def with_zeros(weight: Array) -> Any:
        return gptq(symmetric=False)(abs(weight))  # lowest value 0: its zero point is stored as -1

    meant = write_arrival(dense, tmp_path / "packed", {"": with_zeros}, {**GPTQ, "sym": False})
    compile_checkpoint(tmp_path / "packed", tmp_path / "engine")
    weights = compiled_weights(tmp_path / "engine")
    assert all(np.array_equal(weights[layer], weight) for layer, weight in meant.items())


@pytest.mark.parametrize("format", FORMATS)
def test_what_conch_quantized_may_come_back_as_a_checkpoint(tmp_path: Path, format: str) -> None:
    source = write_tiny(tmp_path / "source", dtype="bfloat16", tie_word_embeddings=True)
    for name in ("quantized", "passed"):
        (tmp_path / name).mkdir()
    quantize(source, tmp_path / "quantized", settings(format), info_of(source), log=tmp_path / "log")
    assert check(plan_for(tmp_path / "quantized")) == []
    quantize(tmp_path / "quantized", tmp_path / "passed", Quantization(), info_of(tmp_path / "quantized"))
    assert (tmp_path / "passed/model.safetensors").samefile(tmp_path / "quantized/model.safetensors")
    assert (tmp_path / "passed" / QUANTIZED_HEAD).exists() == (tmp_path / "quantized" / QUANTIZED_HEAD).exists()
    compile_checkpoint(source, tmp_path / "first", exported=tmp_path / "quantized", format=format)
    compile_checkpoint(tmp_path / "passed", tmp_path / "second")
    first, second = ((tmp_path / name / "model.bin").read_bytes() for name in ("first", "second"))
    assert first == second


def test_the_manifest_and_the_facts_tell_of_the_arrival(packed: Path, dense: Path, tmp_path: Path) -> None:
    compile_checkpoint(packed, tmp_path / "engine", precision="auto", cache="auto")
    manifest = EngineManifest.load(tmp_path / "engine")
    assert (manifest.quantization.format, manifest.quantization.group_size, manifest.precision) == ("gptq", 32, "f32")
    assert info_of(packed).parameters == info_of(dense).parameters


def test_a_build_passes_an_arrival_through(packed: Path, tmp_path: Path) -> None:
    result = build(plan_for(packed, engine={"kv_cache": {"size": "8MiB"}}), Store(tmp_path / "store"))
    passed = result.quantized.path / "model.safetensors"
    assert passed.read_bytes() == (packed / "model.safetensors").read_bytes()
    assert EngineManifest.load(result.engine.path).quantization.format == "gptq"


# --- checked


@pytest.mark.parametrize("format", ["int8", "int4_awq"])
def test_another_format_on_top_is_refused(packed: Path, format: str) -> None:
    violation = found(packed, quantization={"format": format})["quant.already-quantized"]
    assert violation.where == "quantization.format" and "gptq" in violation.message and "`none`" in violation.fix


def test_an_arrival_as_it_is_passes_the_check(packed: Path) -> None:
    assert check(plan_for(packed)) == []


@pytest.mark.parametrize(("config", "refused"), [(GPTQ, True), ({"quant_algo": "W8A16"}, False)], ids=str)
def test_experts_that_are_quantized_already_must_be_int8(packed: Path, config: dict[str, Any], refused: bool) -> None:
    info = replace(info_of(packed), num_experts=4, quantization=config)
    assert ("quant.already-quantized" in found_for(info)) == refused


def test_scales_of_a_quantized_kv_cache_are_told_of(packed: Path, tmp_path: Path, edit_json: EditJson) -> None:
    folder = shutil.copytree(packed, tmp_path / "packed")
    edit_json(folder / "config.json", quantization_config={**GPTQ, "kv_cache_scheme": {"num_bits": 8}})
    violation = found(folder)["quant.kv-scales"]
    assert violation.severity == "warning" and "kv_cache_scheme" in violation.message


def changed(config: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(config))
    *parents, last = path.split(".")
    part = copy
    for name in parents:
        part = part[name]
    part[last] = value
    return copy


CT = scheme("pack-quantized", INT4)
CT8 = scheme("int-quantized", INT8, STATIC)
IN_GROUP = "config_groups.group_0"
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(
        (f"quant_method: {method}", {"quant_method": method})
        for method in ("bitsandbytes", "exl2", "gguf", "hqq", "fp8", "mxfp4")
    ),
    ("quant_method: unknown method", {"bits": 4}),
    ("bits: 3", changed(AWQ, "bits", 3)),
    ("version: gemv", changed(AWQ, "version", "gemv")),
    ("backend: llm-awq", changed(AWQ, "backend", "llm-awq")),
    ("zero_point: false", changed(AWQ, "zero_point", False)),
    ("group_size: null", changed(AWQ, "group_size", None)),
    ("group_size: 48", changed(GPTQ, "group_size", 48)),
    ("bits: 3", changed(GPTQ, "bits", 3)),
    ("bits: 2", changed(GPTQ, "bits", 2)),
    ("group_size: 0", changed(GPTQ, "group_size", 0)),
    ("checkpoint_format: marlin", changed(GPTQ, "checkpoint_format", "marlin")),
    ("is_marlin_format: true", changed(GPTQ, "is_marlin_format", True)),
    ("dynamic", changed(GPTQ, "dynamic", {"+:.*": {"bits": 8}})),
    ("pack_dtype: int16", changed(GPTQ, "pack_dtype", "int16")),
    ("quantization_status: frozen", changed(CT, "quantization_status", "frozen")),
    ("sparsity_config.format: sparse-24-bitmask", changed(CT, "sparsity_config", {"format": "sparse-24-bitmask"})),
    ("transform_config", changed(CT, "transform_config", {"config_groups": {"u": {}}})),
    ("config_groups: {}", changed(CT, "config_groups", {})),
    ("format: marlin-24", changed(CT, "format", "marlin-24")),
    ("format: nvfp4-pack-quantized", changed(CT, "format", "nvfp4-pack-quantized")),
    (f"{IN_GROUP}.weights: 3 bits", changed(CT, f"{IN_GROUP}.weights.num_bits", 3)),
    (f"{IN_GROUP}.weights: 4 bits of float", changed(CT, f"{IN_GROUP}.weights.type", "float")),
    (f"{IN_GROUP}.weights.strategy: block", changed(CT, f"{IN_GROUP}.weights.strategy", "block")),
    (f"{IN_GROUP}.output_activations", changed(CT, f"{IN_GROUP}.output_activations", INT8)),
    (f"{IN_GROUP}.input_activations: 4 bits", changed(CT8, f"{IN_GROUP}.input_activations.num_bits", 4)),
    (f"{IN_GROUP}.input_activations", changed(CT8, f"{IN_GROUP}.input_activations.strategy", "group")),
    *((f"quant_algo: {name}", {"quant_method": "modelopt", "quant_algo": name}) for name in ("NVFP4", "W4A8_AWQ")),
]


@pytest.mark.parametrize(("words", "config"), REFUSED, ids=str)
def test_what_cannot_be_compiled_is_refused_by_its_key(
    packed: Path, tmp_path: Path, edit_json: EditJson, words: str, config: dict[str, Any]
) -> None:
    folder = shutil.copytree(packed, tmp_path / "packed")
    edit_json(folder / "config.json", quantization_config=config)
    error = refusal(folder)
    assert words in error.message and error.fix
    assert error.where == str(folder / "config.json")


def damaged(dense: Path, out: Path, packer: Packer, config: Mapping[str, Any], name: str, tensor: Any) -> Path:
    """A packed checkpoint one tensor of which is another, or gone."""
    from safetensors.torch import load_file, save_file

    write_arrival(dense, out, {"": packer}, config)
    tensors = load_file(out / "model.safetensors")
    full = f"model.layers.1.mlp.up_proj.{name}"
    assert full in tensors
    tensors.update({full: tensor} if tensor is not None else {})
    if tensor is None:
        del tensors[full]
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


PARTS: list[tuple[Packer, dict[str, Any], tuple[str, ...]]] = [
    (awq(), AWQ, ("qweight", "qzeros", "scales")),
    (gptq(shuffled=True), {**GPTQ, "desc_act": True}, ("qweight", "qzeros", "scales", "g_idx")),
    (
        pack_quantized(symmetric=False, shuffled=True),
        changed(changed(CT, f"{IN_GROUP}.weights.symmetric", False), f"{IN_GROUP}.weights.actorder", "group"),
        ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
    ),
    (
        int_quantized(inputs={"input_scale": int8_step, "input_zero_point": one(-9, np.int8)}),
        changed(CT8, f"{IN_GROUP}.input_activations.symmetric", False),
        ("weight", "weight_scale", "input_scale", "input_zero_point"),
    ),
]


@pytest.mark.parametrize(
    ("packer", "config", "name"), [(packer, config, name) for packer, config, names in PARTS for name in names], ids=str
)
def test_a_part_that_is_missing_or_misshapen_is_named(
    dense: Path, tmp_path: Path, packer: Packer, config: dict[str, Any], name: str
) -> None:
    full = f"`model.layers.1.mlp.up_proj.{name}`"
    gone = refusal(damaged(dense, tmp_path / "gone", packer, config, name, None))
    assert gone.rule == "checkpoint.missing-tensor" and full in gone.message
    other = refusal(damaged(dense, tmp_path / "other", packer, config, name, torch.zeros(3, 5)))
    assert f"{full} is [3, 5]" in other.message


def test_words_of_another_type_are_named(dense: Path, tmp_path: Path) -> None:
    error = refusal(damaged(dense, tmp_path / "packed", awq(), AWQ, "qzeros", torch.zeros(2, 16)))
    assert error.rule == "checkpoint.tensor-dtype" and "qzeros` is F32, not I32" in error.message


def test_packed_weights_without_a_word_about_them_are_refused(tmp_path: Path, edit_json: EditJson) -> None:
    source = write_tiny(tmp_path / "source")
    write_arrival(source, tmp_path / "packed", {"": int_quantized()}, {})
    edit_json(tmp_path / "packed/config.json", quantization_config=...)
    assert "q_proj.weight` is I8" in refusal(tmp_path / "packed").message


def test_a_word_about_packed_weights_without_any_is_refused(dense: Path, tmp_path: Path, edit_json: EditJson) -> None:
    folder = shutil.copytree(dense, tmp_path / "dense")
    edit_json(folder / "config.json", quantization_config=GPTQ)
    assert "none of its layers is packed" in refusal(folder).message


def test_a_group_that_is_part_full_is_refused_when_its_index_is_read(dense: Path, tmp_path: Path) -> None:
    uneven = torch.tensor([0] * 40 + [1] * 24, dtype=torch.int32)
    folder = damaged(dense, tmp_path / "packed", gptq(), GPTQ, "g_idx", uneven)
    with pytest.raises(CheckpointError, match=r"groups of different sizes in `model\.layers\.1\.mlp\.up_proj\.g_idx`"):
        compile_checkpoint(folder, tmp_path / "engine")


def test_every_layout_is_tried() -> None:
    tried = {param.values[1]["quant_method"] for param in (*INTEGER, *ROUNDED)} | {"modelopt"}
    assert tried == set(LAYOUTS)
