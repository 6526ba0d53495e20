"""The commands of an engine: which programs run, with which flags, and what is refused because no engine can do it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conch_build.compile.tensorrt import Source, recipe
from conch_build.compile.tensorrt.checkpoint import awq_group_size
from conch_build.compile.tensorrt.families import FAMILIES
from conch_build.errors import PlanError
from conch_build.inspection import inspect
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan, plan_of_draft
from conch_build.recipe import Command, Recipe
from tests.build.models import LLAMA_8B, MIXTRAL, SMOLLM
from tests.build.tiny_adapter import write_adapter

MODEL, OUT = Path("/models/llama"), Path("/out")
LLAMA3_ROPE = {"theta": 500000.0, "scaling": {"rope_type": "llama3", "factor": 8.0}}


def plan_of(**changes: Any) -> Plan:
    document: dict[str, Any] = {"name": "m", "model": {"checkpoint": str(MODEL)}, "target": {"gpu": "h100"}, **changes}
    document["engine"] = {"backend": "tensorrt", **changes.get("engine", {})}
    return Plan.model_validate(document)


def made(info: ModelInfo = LLAMA_8B, **changes: Any) -> Recipe:
    return recipe(plan_of(**changes), info, MODEL, OUT)


def program(command: Command) -> str:
    return Path(command.argv[1] if command.argv[0] == "python3" else command.argv[0]).name


def command_of(steps: Recipe, name: str) -> Command:
    return next(command for command in steps.commands if program(command) == name)


def flags(command: Command) -> dict[str, str]:
    """Flag -> its values, joined."""
    found: dict[str, str] = {}
    name = ""
    for word in command.argv:
        if word.startswith("-"):
            name = word
            found[name] = ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


@pytest.mark.parametrize(
    ("form", "programs"),
    [
        ("none", ["convert_checkpoint.py", "trtllm-build"]),
        ("int8", ["convert_checkpoint.py", "trtllm-build"]),
        *(
            (form, ["-m", "quantize.py", "trtllm-build"])
            for form in ("fp8", "nvfp4", "int8_sq", "int4_awq", "w4a8_awq")
        ),
    ],
)
def test_a_format_decides_who_makes_the_checkpoint(form: str, programs: list[str]) -> None:
    steps = made(quantization={"format": form})
    assert [program(command) for command in steps.commands][: len(programs)] == programs
    assert [program(command) for command in steps.commands][len(programs) :] == [
        "install",
        "generate_xgrammar_tokenizer_info.py",
    ]


def test_the_split_over_gpus_is_decided_by_the_checkpoint_and_not_by_trtllm_build() -> None:
    steps = made(engine={"parallel": {"tensor": 4, "pipeline": 2}})
    convert = flags(command_of(steps, "convert_checkpoint.py"))
    assert (convert["--tp_size"], convert["--pp_size"], convert["--workers"]) == ("4", "2", "8")
    build = flags(command_of(steps, "trtllm-build"))
    assert "--tp_size" not in build and build["--workers"] == "8"


def test_each_command_reads_what_the_one_before_it_wrote() -> None:
    steps = made(quantization={"format": "fp8"})
    texts, quantize, build = steps.commands[:3]
    assert flags(quantize)["--calib_dataset"] == "/out/calibration" == texts.argv[4]
    assert flags(build)["--checkpoint_dir"] == flags(quantize)["--output_dir"] == "/out/checkpoint"
    assert flags(build)["--output_dir"] == "/out/engine"


def test_engines_are_built_in_the_image_that_serves_them_and_checkpoints_where_the_scripts_are() -> None:
    steps = made()
    assert command_of(steps, "trtllm-build").image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert command_of(steps, "convert_checkpoint.py").image == "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    assert command_of(steps, "install").image is None
    named = made(target={"gpu": "h100", "container": "example.org/own:1"})
    assert command_of(named, "trtllm-build").image == "example.org/own:1"


def test_in_flight_batching_and_what_the_plan_says_are_always_written() -> None:
    build = flags(command_of(made(engine={"max_batch_size": 32, "max_seq_len": 8192}), "trtllm-build"))
    assert (
        build
        | {
            "--max_batch_size": "32",
            "--max_num_tokens": "2048",
            "--max_seq_len": "8192",
            "--remove_input_padding": "enable",
            "--kv_cache_type": "paged",
            "--tokens_per_block": "32",
            "--context_fmha": "enable",
            "--use_paged_context_fmha": "enable",
            "--gpt_attention_plugin": "auto",
        }
        == build
    )


@pytest.mark.parametrize(
    ("form", "plugin"), [("none", "auto"), ("fp8", "disable"), ("nvfp4", "nvfp4"), ("int4_awq", "auto")]
)
def test_the_format_decides_who_multiplies_unless_the_plan_does(form: str, plugin: str) -> None:
    steps = made(quantization={"format": form})
    assert flags(command_of(steps, "trtllm-build"))["--gemm_plugin"] == plugin
    asked = made(quantization={"format": form}, engine={"build_args": {"gemm_plugin": "float16"}})
    assert flags(command_of(asked, "trtllm-build"))["--gemm_plugin"] == "float16"


@pytest.mark.parametrize("form", ["none", "fp8"])
def test_logits_are_float32_whoever_wrote_the_checkpoint_unless_the_plan_says_so(form: str) -> None:
    steps = made(quantization={"format": form})
    assert flags(command_of(steps, "trtllm-build"))["--logits_dtype"] == "float32"
    asked = made(quantization={"format": form}, engine={"build_args": {"logits_dtype": "float16"}})
    assert flags(command_of(asked, "trtllm-build"))["--logits_dtype"] == "float16"


@pytest.mark.parametrize(("form", "asked", "read"), [("fp8", 64, "64"), ("int4_awq", 64, "32"), ("w4a8_awq", 8, "8")])
def test_awq_is_calibrated_with_as_many_texts_as_quantize_py_reads(form: str, asked: int, read: str) -> None:
    steps = made(quantization={"format": form, "calibration": {"samples": asked}})
    assert flags(command_of(steps, "quantize.py"))["--calib_size"] == read == steps.commands[0].argv[5]


@pytest.mark.parametrize("folder", ["prompts", "vila", "llava-onevision-qwen2"])
def test_a_path_that_names_another_model_is_not_given_to_quantize_py(folder: str) -> None:
    source = Path("/models") / folder / "llama"
    with pytest.raises(PlanError, match=r"quantize\.py takes a checkpoint for an? "):
        recipe(plan_of(quantization={"format": "fp8"}), LLAMA_8B, source, OUT)
    assert command_of(recipe(plan_of(), LLAMA_8B, source, OUT), "convert_checkpoint.py")


@pytest.mark.parametrize("form", ["int8_sq", "int4_awq", "w4a8_awq"])
def test_experts_are_not_quantized_to_what_their_engines_cannot_multiply(form: str) -> None:
    with pytest.raises(PlanError, match=f"engines of MixtralForCausalLM have no {form} weights"):
        made(MIXTRAL, quantization={"format": form})


def test_qwen3_has_engines_in_sixteen_bits_fp8_and_nvfp4_alone() -> None:
    qwen = replace(LLAMA_8B, architecture="Qwen3ForCausalLM", model_type="qwen3")
    for form in ("none", "fp8", "nvfp4"):
        made(qwen, quantization={"format": form})
    for form in ("int8", "int4_awq"):
        with pytest.raises(PlanError, match=f"engines of Qwen3ForCausalLM have no {form} weights"):
            made(qwen, quantization={"format": form})


@pytest.mark.parametrize(
    ("form", "asked", "flag"),
    [("fp8", "auto", "fp8"), ("nvfp4", "auto", "fp8"), ("int4_awq", "auto", None), ("int8_sq", "int8", "int8")],
)
def test_the_kv_cache_is_calibrated_with_the_weights(form: str, asked: str, flag: str | None) -> None:
    engine = {"chunked_prefill": False, "kv_cache": {"reuse": False}} if asked == "int8" else {}
    steps = made(quantization={"format": form, "kv_cache": asked}, engine=engine)
    assert flags(command_of(steps, "quantize.py")).get("--kv_cache_dtype") == flag


def test_a_quantized_cache_beside_sixteen_bit_weights_is_calibrated_too() -> None:
    engine = {"chunked_prefill": False, "kv_cache": {"reuse": False}}
    quantize = flags(command_of(made(quantization={"format": "none", "kv_cache": "fp8"}, engine=engine), "quantize.py"))
    assert (quantize["--qformat"], quantize["--kv_cache_dtype"]) == ("full_prec", "fp8")


@pytest.mark.parametrize(("form", "reads"), [("none", False), ("int4_awq", False), ("fp8", True), ("w4a8_awq", True)])
def test_paged_prompts_read_an_fp8_cache_beside_weights_in_fp8_alone(form: str, reads: bool) -> None:
    quantization = {"format": form, "kv_cache": "fp8"}
    plain = made(quantization=quantization, engine={"chunked_prefill": False, "kv_cache": {"reuse": False}})
    flag = flags(command_of(plain, "trtllm-build"))["--use_paged_context_fmha"]
    assert flag == ("enable" if reads else "disable")
    if not reads:
        with pytest.raises(PlanError, match=f"an fp8 KV cache beside weights in {form} excludes"):
            made(quantization=quantization)


def test_engines_have_kernels_for_few_and_for_many_tokens_unless_the_plan_says_for_how_many() -> None:
    assert flags(command_of(made(), "trtllm-build"))["--multiple_profiles"] == "enable"
    tuned = made(engine={"build_args": {"opt_num_tokens": 64}})
    assert flags(command_of(tuned, "trtllm-build"))["--multiple_profiles"] == "disable"


def test_an_nvfp4_cache_is_refused_whatever_the_weights_are() -> None:
    for form in ("none", "nvfp4"):
        with pytest.raises(PlanError, match="engines have no KV cache in nvfp4"):
            made(quantization={"format": form, "kv_cache": "nvfp4"})


def test_an_int8_cache_turns_paged_prompts_off_or_is_refused() -> None:
    quantization = {"format": "int8_sq", "kv_cache": "int8"}
    with pytest.raises(PlanError, match="int8 KV cache excludes"):
        made(quantization=quantization)
    steps = made(quantization=quantization, engine={"chunked_prefill": False, "kv_cache": {"reuse": False}})
    assert flags(command_of(steps, "trtllm-build"))["--use_paged_context_fmha"] == "disable"


@pytest.mark.parametrize(
    ("stored", "dtype"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float16")]
)
def test_activations_have_the_checkpoints_type_in_sixteen_bits(stored: str, dtype: str) -> None:
    convert = flags(command_of(made(replace(LLAMA_8B, dtype=stored)), "convert_checkpoint.py"))
    assert convert["--dtype"] == dtype
    asked = made(replace(LLAMA_8B, dtype=stored), engine={"precision": "fp16"})
    assert flags(command_of(asked, "convert_checkpoint.py"))["--dtype"] == "float16"


def test_awq_groups_divide_each_width_on_each_gpu() -> None:
    def size(info: ModelInfo, **changes: Any) -> int:
        return awq_group_size(plan_of(**{"quantization": {"format": "int4_awq"}, **changes}), info)

    assert size(LLAMA_8B) == 128
    assert size(SMOLLM) == 64
    assert size(replace(LLAMA_8B, intermediate_size=14336), engine={"parallel": {"tensor": 16}}) == 128
    assert size(replace(LLAMA_8B, intermediate_size=11008), engine={"parallel": {"tensor": 2}}) == 128
    assert size(replace(LLAMA_8B, intermediate_size=11008), engine={"parallel": {"tensor": 4}}) == 64
    with pytest.raises(PlanError, match="groups of 32 weights do not fit: int4_awq has kernels for 128 or 64"):
        size(LLAMA_8B, quantization={"format": "int4_awq", "group_size": 32})
    with pytest.raises(PlanError, match="w4a8_awq has kernels for 128"):
        size(SMOLLM, quantization={"format": "w4a8_awq"})


def test_experts_are_spread_by_the_converter_only() -> None:
    parallel = {"parallel": {"tensor": 8, "expert": 4}}
    convert = flags(command_of(made(MIXTRAL, engine=parallel), "convert_checkpoint.py"))
    assert (convert["--moe_tp_size"], convert["--moe_ep_size"]) == ("2", "4")
    with pytest.raises(PlanError, match=r"quantize.py splits experts by their rows") as refused:
        made(MIXTRAL, engine=parallel, quantization={"format": "fp8"})
    assert refused.value.where == "engine.parallel.expert"
    with pytest.raises(PlanError, match="3 does not divide the 8 GPUs"):
        made(MIXTRAL, engine={"parallel": {"tensor": 8, "expert": 3}})


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_of_the_table_has_a_command(architecture: str) -> None:
    steps = made(replace(LLAMA_8B, architecture=architecture))
    path = command_of(steps, "convert_checkpoint.py").argv[1]
    assert path.startswith("/app/tensorrt_llm/examples/models/core/")


def test_gemma_has_spellings_of_its_own_and_no_pipeline() -> None:
    gemma = replace(LLAMA_8B, architecture="Gemma2ForCausalLM")
    convert = flags(command_of(made(gemma, engine={"parallel": {"tensor": 2}}), "convert_checkpoint.py"))
    assert convert["--ckpt-type"] == "hf" and convert["--world-size"] == "2"
    with pytest.raises(PlanError, match="gemma's converter cannot split layers over 2 GPUs"):
        made(gemma, engine={"parallel": {"pipeline": 2}})


def test_an_architecture_without_engines_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"no engines for GptOssForCausalLM.*`engine.backend: pytorch`"):
        made(replace(LLAMA_8B, architecture="GptOssForCausalLM"))


def test_modelopts_own_checkpoints_are_taken_as_they_are_where_a_converter_can() -> None:
    stored = replace(LLAMA_8B, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    convert = flags(command_of(made(stored), "convert_checkpoint.py"))
    assert "--use_fp8" in convert and "--fp8_kv_cache" in convert
    with pytest.raises(PlanError, match=r"is quantized already \(awq\)"):
        made(replace(LLAMA_8B, quantization={"quant_method": "awq"}))
    with pytest.raises(PlanError, match="qwen's converter does not take"):
        made(replace(stored, architecture="Qwen3ForCausalLM"))


def test_a_target_verifies_the_tokens_of_a_draft_that_is_built_beside_it(tmp_path: Path) -> None:
    speculation = {"method": "draft", "checkpoint": "/models/draft", "max_draft_len": 5}
    plan = plan_of(engine={"speculation": speculation})
    own = plan_of_draft(plan)
    assert own is not None
    steps = recipe(plan, LLAMA_8B, MODEL, OUT, draft=Source(own, SMOLLM, Path("/models/draft")))
    target, draft = (flags(c) for c in steps.commands if program(c) == "trtllm-build")
    assert (target["--speculative_decoding_mode"], target["--max_draft_len"]) == ("draft_tokens_external", "5")
    assert "--speculative_decoding_mode" not in draft
    assert (target["--output_dir"], draft["--output_dir"]) == ("/out/engine", "/out/draft/engine")
    assert draft["--use_paged_context_fmha"] == "enable"
    assert sum(program(c) == "install" for c in steps.commands) == 1, "the tokenizer is the target's"


def test_lookahead_needs_no_checkpoint() -> None:
    steps = made(engine={"speculation": {"method": "lookahead", "max_draft_len": 27}})
    build = flags(command_of(steps, "trtllm-build"))
    assert (build["--speculative_decoding_mode"], build["--max_draft_len"]) == ("lookahead_decoding", "27")


@pytest.mark.parametrize("method", ["eagle3", "mtp", "ngram"])
def test_speculation_that_only_the_llm_api_has_is_refused(method: str) -> None:
    with pytest.raises(PlanError, match=r"engines .*`engine.backend: pytorch`") as refused:
        made(engine={"speculation": {"method": method}})
    assert refused.value.where == "engine.speculation.method"


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 5, "medusa_num_layers": 1}))
    return tmp_path


def test_medusa_heads_go_into_the_checkpoint(heads: Path) -> None:
    speculation = {"method": "medusa", "checkpoint": str(heads), "max_draft_len": 63}
    steps = made(engine={"speculation": speculation})
    convert = command_of(steps, "convert_checkpoint.py")
    assert convert.argv[1].endswith("examples/medusa/convert_checkpoint.py")
    asked = flags(convert)
    assert asked["--medusa_model_dir"] == str(heads)
    assert (asked["--num_medusa_heads"], asked["--max_medusa_token_len"]) == ("5", "63")
    build = flags(command_of(steps, "trtllm-build"))
    assert (build["--speculative_decoding_mode"], build["--max_draft_len"]) == ("medusa", "63")


@pytest.mark.parametrize(
    ("info", "changes", "said"),
    [
        (LLAMA_8B, {"quantization": {"format": "fp8"}}, "Medusa heads stay in 16 bits"),
        (replace(LLAMA_8B, rope=LLAMA3_ROPE), {}, "drops the factors of the model's rope scaling"),
        (replace(LLAMA_8B, architecture="Qwen3ForCausalLM"), {}, "no Medusa for Qwen3ForCausalLM"),
    ],
)
def test_medusa_is_refused_where_its_converter_would_go_wrong(
    heads: Path, info: ModelInfo, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        made(info, engine={"speculation": {"method": "medusa", "checkpoint": str(heads)}}, **changes)


def test_room_for_adapters_is_left_where_the_plan_says() -> None:
    steps = made(engine={"lora": {"max_rank": 8, "target_modules": ["attn_q", "attn_v"]}})
    build = flags(command_of(steps, "trtllm-build"))
    assert (build["--lora_plugin"], build["--max_lora_rank"]) == ("bfloat16", "8")
    assert build["--lora_target_modules"] == "attn_q attn_v"
    assert "--lora_plugin" not in flags(command_of(made(), "trtllm-build"))


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> ModelInfo:
    info, _ = inspect(tiny_llama)
    assert info is not None
    return info


def test_adapters_are_converted_into_folders_named_by_their_ids(
    tiny: ModelInfo, tiny_llama: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tiny_llama, tmp_path / "adapter", target_modules=["q_proj", "down_proj"])
    lora = {"max_rank": 8, "adapters": {"one": str(adapter), "two": str(adapter)}}
    steps = made(tiny, engine={"lora": lora})
    build = flags(command_of(steps, "trtllm-build"))
    assert sorted(build["--lora_target_modules"].split()) == ["attn_q", "mlp_4h_to_h"]
    converted = [flags(c) for c in steps.commands if program(c) == "hf_lora_convert.py"]
    assert [c["-o"] for c in converted] == ["/out/lora/1", "/out/lora/2"]
    assert {c["--storage-type"] for c in converted} == {build["--lora_plugin"]} == {"bfloat16"}


def test_modules_that_the_plan_leaves_out_are_named(tiny: ModelInfo, tiny_llama: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tiny_llama, tmp_path / "adapter")
    lora = {"max_rank": 8, "adapters": {"one": str(adapter)}, "target_modules": ["attn_q"]}
    with pytest.raises(PlanError, match=r"leaves out attn_v, which engine\.lora\.adapters\.one adds to"):
        made(tiny, engine={"lora": lora})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"alpha_pattern": {"q_proj": 4}}, "has an `alpha_pattern`, which hf_lora_convert.py ignores"),
        ({"target_modules": ["q_proj", "lm_head"]}, "adds to `lm_head`, which hf_lora_convert.py cannot adapt"),
    ],
)
def test_what_the_converter_would_drop_in_silence_is_refused(
    tiny: ModelInfo, tiny_llama: Path, tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    adapter = write_adapter(tiny_llama, tmp_path / "adapter", **config)
    with pytest.raises(PlanError, match=said):
        made(tiny, engine={"lora": {"max_rank": 8, "adapters": {"one": str(adapter)}}})


def test_further_flags_are_passed_on() -> None:
    arguments = {"fast_build": True, "weight_streaming": False, "reduce_fusion": True, "opt_num_tokens": 64}
    build = flags(command_of(made(engine={"build_args": arguments}), "trtllm-build"))
    assert build["--fast_build"] == "" and build["--reduce_fusion"] == "enable"
    assert build["--opt_num_tokens"] == "64" and "--weight_streaming" not in build


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_batch_size": 8}, "is decided by `engine.max_batch_size`"),
        ({"dry_run": True}, "is decided by `conch build --dry-run`"),
        ({"fast_build": "yes"}, "is a switch: true or false"),
        ({"use_custom_all_reduce": True}, "use_custom_all_reduce"),
        ({"gemm_plugin": "fp9"}, "gemm_plugin"),
        ({"multiple_profiles": True, "opt_num_tokens": 64}, "excludes `--opt_num_tokens`"),
    ],
)
def test_a_flag_that_is_wrong_is_refused_by_its_key(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said) as refused:
        made(engine={"build_args": arguments})
    assert (refused.value.where or "").startswith("engine.build_args")


def test_a_model_that_should_write_its_own_texts_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot let the model write its own"):
        made(quantization={"format": "fp8", "calibration": {"data": "self"}})


def test_plugins_without_kernels_for_the_gpu_are_refused() -> None:
    arguments = {"build_args": {"low_latency_gemm_plugin": "fp8"}}
    made(quantization={"format": "fp8"}, engine=arguments)
    with pytest.raises(PlanError, match=r"`--low_latency_gemm_plugin` has no kernels for this GPU \(SM100\)"):
        made(quantization={"format": "fp8"}, engine=arguments, target={"gpu": "b200"})


def test_a_release_without_engines_is_refused_with_the_one_that_has_them() -> None:
    with pytest.raises(PlanError, match=r"1\.3\.0rc21 has no engines.*Set it to 1\.2\.1"):
        made(target={"gpu": "h100", "tensorrt_llm": "1.3.0rc21"})


def test_float32_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="f32 has no attention kernels"):
        made(engine={"precision": "f32"})
