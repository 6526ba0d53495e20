"""Command lines: every flag that a release has is taken with its default, and everything else is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conch_build.profiles import PROFILES, Profile
from conch_build.profiles.flags import Flag, Tool, tools

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]


TOOLS = [
    pytest.param(tool, id=f"{profile.name} {tool.name}")
    for profile in PROFILES.values()
    for tool in tools(profile.snapshots).values()
]


def needed(tool: Tool, but: Flag | None = None) -> list[str]:
    """Words without which the tool does not start."""
    words = [name.lower() for name in tool.positionals]
    for flag in tool.flags:
        if flag.required and flag != but:
            words += [flag.name, "there"]
    return words


def right(flag: Flag) -> list[str]:
    """A value that the flag takes: its default, or one of its type."""
    if flag.type == "flag":
        return []
    if flag.default is not None:
        return [str(flag.default)]
    samples = {"int": "3", "float": "0.5", "json": "{}"}
    return [str(flag.choices[0]) if flag.choices else samples.get(flag.type, "there")]


def wrong(flag: Flag) -> str | None:
    """A value that it does not take; None where it takes any text."""
    if flag.type in ("str", "path"):
        return None
    return {"flag": "enable", "int": "1.5", "float": "half"}.get(flag.type, "nonsense")


def found(tool: Tool, words: Sequence[str], but: Flag | None = None) -> list[str]:
    return tool.problems([*needed(tool, but), *words])


@pytest.mark.parametrize("tool", TOOLS)
class TestEachFlag:
    def test_is_taken_with_its_default_in_every_spelling(self, tool: Tool) -> None:
        for spelling, flag in tool.spellings.items():
            assert found(tool, [spelling, *right(flag)], flag) == []
            if flag.type != "flag":
                assert found(tool, [f"{spelling}={right(flag)[0]}"], flag) == []

    def test_refuses_values_of_another_type(self, tool: Tool) -> None:
        for flag in tool.flags:
            value = wrong(flag)
            if value is not None:
                (problem,) = found(tool, [f"{flag.name}={value}"], flag)
                assert f"`{flag.name}`" in problem

    def test_needs_a_value_if_it_takes_one(self, tool: Tool) -> None:
        for flag in tool.flags:
            if flag.type != "flag" and flag.nargs != "?":
                assert found(tool, [flag.name], flag) == [f"`{flag.name}` needs a value"]

    def test_is_given_once_but_where_values_add_up(self, tool: Tool) -> None:
        for flag in tool.flags:
            words = [flag.name, *right(flag)] * 2
            assert found(tool, words, flag) == ([] if flag.repeat else [f"`{flag.name}` is given twice"])


class TestUnknownFlags:
    @pytest.mark.parametrize(
        ("typo", "meant"),
        [("--max_batchsize", "--max_batch_size"), ("--use-paged-context-fmha", "--use_paged_context_fmha")],
    )
    def test_the_nearest_is_named(self, typo: str, meant: str) -> None:
        (problem,) = OLD.flag_problems("trtllm-build", [typo, "3"])
        assert f"`{typo}`" in problem and f"did you mean `{meant}`?" in problem

    @pytest.mark.parametrize(
        "flag",
        [
            "--tp_size",
            "--pp_size",
            "--use_custom_all_reduce",
            "--max_output_len",
            "--enable_xqa",
            "--context_fmha_fp32_acc",
            "--use_context_fmha_for_generation",
        ],
    )
    def test_those_of_older_releases_are_told_apart(self, flag: str) -> None:
        (problem,) = OLD.flag_problems("trtllm-build", [flag, "2"])
        assert f"`{flag}` is no flag of trtllm-build any more" in problem

    @pytest.mark.parametrize("flag", ["--config", "--tensor_parallel_size", "--served_model_name", "--kv_cache_dtype"])
    def test_those_of_the_later_release_are_named_with_it(self, flag: str) -> None:
        (problem,) = OLD.flag_problems("trtllm-serve", ["model", flag, "fp8"])
        assert f"`{flag}`" in problem and "1.3.0rc21 has it" in problem
        value = {"--tensor_parallel_size": "2"}.get(flag, "fp8")
        assert NEW.flag_problems("trtllm-serve", ["model", flag, value]) == []

    def test_short_names_are_in_every_release(self) -> None:
        argv = ["model", "--tp_size", "2", "--pp_size", "1", "--ep_size", "2", "--extra_llm_api_options", "args.yaml"]
        for profile in (OLD, NEW):
            assert profile.flag_problems("trtllm-serve", argv) == []

    def test_the_engine_backend_goes_with_the_engines(self) -> None:
        argv = ["model", "--backend", "tensorrt"]
        assert OLD.flag_problems("trtllm-serve", argv) == []
        (problem,) = NEW.flag_problems("trtllm-serve", argv)
        assert "pytorch, _autodeploy" in problem

    def test_a_program_that_is_gone_is_named_with_the_release_that_has_it(self) -> None:
        assert NEW.flag_problems("trtllm-build", []) == ["trtllm-build is not in this release; 1.2.1 has it"]
        assert OLD.flag_problems("trtllm-brew", []) == ["no flags of trtllm-brew are known"]


class TestWords:
    def test_serve_takes_one_model(self) -> None:
        assert OLD.flag_problems("trtllm-serve", []) == ["MODEL is missing"]
        assert OLD.flag_problems("trtllm-serve", ["a", "b"]) == ["trtllm-serve takes no b"]
        assert OLD.flag_problems("trtllm-serve serve", ["a"]) == []

    def test_what_must_be_given_is_missed(self) -> None:
        assert OLD.flag_problems("trtllm-serve disaggregated", []) == ["`--config_file` is missing"]
        assert OLD.flag_problems("trtllm-serve disaggregated", ["-c", "c.yaml", "-t", "600", "-r", "600"]) == []
        assert OLD.flag_problems("hf_lora_convert.py", ["-i", "in"]) == ["`--out-dir` is missing"]

    def test_a_switch_does_not_take_the_word_after_it(self) -> None:
        assert OLD.flag_problems("trtllm-serve", ["--trust_remote_code", "model"]) == []

    def test_a_negative_number_is_a_value(self) -> None:
        argv = ["--model_dir", "m", "--moe_tp_size", "-1"]
        assert OLD.flag_problems("llama/convert_checkpoint.py", argv) == []

    def test_a_list_takes_all_words_up_to_the_next_flag(self) -> None:
        argv = ["--lora_target_modules", "attn_q", "attn_v", "--workers", "2"]
        assert OLD.flag_problems("trtllm-build", argv) == []
        (problem,) = OLD.flag_problems("trtllm-build", ["--lora_target_modules", "attn_q", "q_proj"])
        assert "q_proj" in problem

    def test_formats_of_auto_quantize_come_with_commas(self) -> None:
        argv = ["--pyt_ckpt_path", "m", "--qformat", "fp8,int4_awq", "--auto_quantize_bits", "4.8"]
        assert OLD.flag_problems("hf_ptq.py", argv) == []
        assert OLD.flag_problems("hf_ptq.py", ["--pyt_ckpt_path", "m", "--qformat", "fp8,int3"])


class TestConverters:
    """Each family's script has flags of its own."""

    def test_gemmas_has_dashes_and_no_pipeline(self) -> None:
        argv = ["--ckpt-type", "hf", "--model-dir", "m", "--output-model-dir", "o", "--world-size", "2"]
        assert OLD.flag_problems("gemma/convert_checkpoint.py", argv) == []
        assert OLD.flag_problems("gemma/convert_checkpoint.py", [*argv, "--pp_size", "1"])
        assert OLD.flag_problems("llama/convert_checkpoint.py", argv)

    @pytest.mark.parametrize(("family", "takes"), [("llama", True), ("qwen", False), ("phi", False)])
    def test_only_llamas_takes_quantized_checkpoints(self, family: str, takes: bool) -> None:
        problems = OLD.flag_problems(f"{family}/convert_checkpoint.py", ["--model_dir", "m", "--use_fp8"])
        assert (problems == []) == takes

    def test_medusas_knows_its_heads(self) -> None:
        argv = ["--model_dir", "m", "--model_type", "llama", "--medusa_model_dir", "h", "--num_medusa_heads", "4"]
        assert OLD.flag_problems("medusa/convert_checkpoint.py", argv) == []
        assert OLD.flag_problems("llama/convert_checkpoint.py", argv)


BROKEN = [
    (["--gather_context_logits", "--max_draft_len", "4"], ["--gather_context_logits", "--max_draft_len", "0"]),
    (["--multiple_profiles", "enable", "--opt_num_tokens", "64"], ["--opt_num_tokens", "64"]),
    (["--gemm_swiglu_plugin", "fp8", "--use_fused_mlp", "disable"], ["--gemm_swiglu_plugin", "fp8"]),
    (["--user_buffer", "enable"], ["--user_buffer", "enable", "--reduce_fusion", "enable"]),
    (["--streamingllm", "enable"], ["--streamingllm", "disable"]),
]


class TestRulesOfTrtllmBuild:
    @pytest.mark.parametrize(("broken", "kept"), BROKEN)
    def test_what_excludes_each_other(self, broken: list[str], kept: list[str]) -> None:
        (problem,) = OLD.flag_problems("trtllm-build", broken)
        assert f"`{broken[0]}" in problem
        assert OLD.flag_problems("trtllm-build", kept) == []

    @pytest.mark.parametrize(
        "argv",
        [
            ["--gemm_swiglu_plugin", "fp8"],
            ["--fp8_rowwise_gemm_plugin", "auto"],
            ["--low_latency_gemm_plugin", "fp8"],
            ["--low_latency_gemm_swiglu_plugin", "fp8"],
            ["--bert_context_fmha_fp32_acc", "enable"],
        ],
    )
    def test_plugins_without_kernels_for_blackwell(self, argv: list[str]) -> None:
        (problem,) = OLD.flag_problems("trtllm-build", argv, sm=100)
        assert argv[0] in problem and "SM100" in problem
        assert OLD.flag_problems("trtllm-build", argv, sm=90) == []
        assert OLD.flag_problems("trtllm-build", argv) == []
        assert OLD.flag_problems("trtllm-build", [argv[0], "disable"], sm=100) == []


@pytest.mark.parametrize("profile", [OLD, NEW])
def test_triton_is_launched_with_the_same_flags_by_both(profile: Profile) -> None:
    argv = ["--world_size", "4", "--model_repo", "/r", "--grpc_port", "8001", "--no-mpi", "-f"]
    assert profile.flag_problems("launch_triton_server.py", argv) == []
    assert profile.flag_problems("launch_triton_server.py", ["--world-size", "4"])
