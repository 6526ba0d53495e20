"""The LLM API's arguments of a plan: named as the release names them, whole, and never said twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conch_build.checkpoint import resolve
from conch_build.compile.pytorch import llm_args, to_yaml
from conch_build.compile.pytorch.speculation import MTP_ARCHITECTURES, check_draft
from conch_build.errors import PlanError
from conch_build.model_info import Latent, ModelInfo
from conch_build.plan import Model, Plan, parse_plan
from conch_build.profiles import PROFILES, Profile
from tests.build.models import LLAMA_8B, MIXTRAL
from tests.build.tiny import write_tiny
from tests.build.tiny_adapter import write_adapter

OLD, NEW = PROFILES["1.2.1"], PROFILES["1.3.0rc21"]
DEEPSEEK = replace(
    LLAMA_8B,
    architecture="DeepseekV3ForCausalLM",
    num_layers=61,
    num_kv_heads=128,
    latent=Latent(kv_rank=512, rope_head_dim=64, nope_head_dim=128, value_head_dim=128, query_rank=1536),
)


def plan_for(engine: dict[str, Any] | None = None, **parts: Any) -> Plan:
    data = {"name": "p", "model": {"checkpoint": "x"}, "target": {"gpu": "h100"}, **parts}
    return parse_plan(yaml.safe_dump({**data, "engine": {"backend": "pytorch", **(engine or {})}}))


def args(
    engine: dict[str, Any] | None = None, info: ModelInfo = LLAMA_8B, profile: Profile = OLD, **parts: Any
) -> dict[str, Any]:
    return llm_args(plan_for(engine, **parts), info, profile)


def refused(
    engine: dict[str, Any], where: str, info: ModelInfo = LLAMA_8B, profile: Profile = OLD, **parts: Any
) -> str:
    with pytest.raises(PlanError) as error:
        args(engine, info, profile, **parts)
    assert error.value.where == where
    return error.value.message


def test_the_plans_limits_are_the_arguments() -> None:
    limits = {"max_batch_size": 16, "max_num_tokens": 4096, "max_seq_len": 8192, "stream_interval": 3}
    given = args({**limits, "chunked_prefill": False})
    assert given.items() >= {**limits, "enable_chunked_prefill": False, "dtype": "bfloat16"}.items()


def test_the_model_itself_is_named_by_who_starts_it() -> None:
    assert not args().keys() & {"model", "tokenizer", "backend"}


def test_numbers_of_gpus_are_those_of_the_plan() -> None:
    given = args({"parallel": {"tensor": 4, "pipeline": 2}}, target={"gpu": "h100", "gpus_per_node": 4})
    assert (given["tensor_parallel_size"], given["pipeline_parallel_size"], given["gpus_per_node"]) == (4, 2, 4)
    assert "gpus_per_node" not in args()


def test_experts_are_spread_over_the_tensor_parallel_gpus() -> None:
    given = args({"parallel": {"tensor": 8, "expert": 4}}, MIXTRAL)
    assert (given["moe_tensor_parallel_size"], given["moe_expert_parallel_size"]) == (2, 4)
    assert "divide" in refused({"parallel": {"tensor": 4, "expert": 3}}, "engine.parallel.expert", MIXTRAL)


def test_nested_objects_are_written_whole() -> None:
    cache = args({"kv_cache": {"tokens_per_block": 64, "reuse": False}})["kv_cache_config"]
    assert (cache["tokens_per_block"], cache["enable_block_reuse"]) == (64, False)
    known = OLD.llm_args_defaults("KvCacheConfig")
    assert cache.keys() == {name for name, default in known.items() if default is not None}


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, {"free_gpu_memory_fraction": 0.9}),
        ({"kv_cache": {"free_memory_fraction": 0.5}}, {"free_gpu_memory_fraction": 0.5}),
        # 2 x 32 layers x 8 heads x 128 x 2 bytes are 128 KiB a token; blocks have 32 tokens.
        ({"kv_cache": {"size": "1GiB"}}, {"max_tokens": 8192}),
        ({"kv_cache": {"size": "1GiB"}, "parallel": {"tensor": 4}}, {"max_tokens": 4 * 8192}),
        ({"kv_cache": {"size": "1GiB"}, "parallel": {"pipeline": 2}}, {"max_tokens": 2 * 8192}),
        ({"kv_cache": {"concurrency": 3}, "max_seq_len": 100}, {"max_tokens": 3 * 128}),
    ],
)
def test_the_caches_size_is_a_fraction_or_tokens(engine: dict[str, Any], expected: dict[str, Any]) -> None:
    assert args(engine)["kv_cache_config"].items() >= expected.items()


def test_a_smaller_type_of_the_cache_holds_more_tokens() -> None:
    size = {"kv_cache": {"size": "1GiB"}}
    cache = args(size, quantization={"kv_cache": "fp8"})["kv_cache_config"]
    assert (cache["dtype"], cache["max_tokens"]) == ("fp8", 2 * 8192)
    assert args(size)["kv_cache_config"]["dtype"] == "auto"


def test_latent_attention_caches_one_vector_for_all_heads() -> None:
    tokens = args({"kv_cache": {"size": "1GiB"}, "parallel": {"tensor": 8}}, DEEPSEEK)["kv_cache_config"]["max_tokens"]
    assert tokens == (1 << 30) // (61 * 576 * 2 * 32) * 32


def test_a_cache_that_holds_nothing_or_has_no_kernels_is_refused() -> None:
    assert "one block" in refused({"kv_cache": {"size": "1KiB"}}, "engine.kv_cache.size")
    assert "int8" in refused({}, "quantization.kv_cache", quantization={"kv_cache": "int8"})


def test_decoding_is_captured_for_every_batch_that_the_plan_allows() -> None:
    assert args({"max_batch_size": 24})["cuda_graph_config"].items() >= {"max_batch_size": 24}.items()


def test_further_arguments_are_put_beside_the_plans_and_into_its_objects() -> None:
    further = {"print_iter_log": True, "kv_cache_config": {"use_uvm": True}}
    given = args({"llm_args": further, "kv_cache": {"reuse": False}})
    assert given["print_iter_log"] is True
    assert (given["kv_cache_config"]["use_uvm"], given["kv_cache_config"]["enable_block_reuse"]) == (True, False)


def test_adapters_run_without_cuda_graphs_where_those_would_not_take_them() -> None:
    lora = {"lora": {"target_modules": ["attn_q"]}}
    assert args(lora)["cuda_graph_config"] is None
    assert args(lora, profile=NEW)["cuda_graph_config"]["max_batch_size"] == 64
    own = {"llm_args": {"cuda_graph_config": {"max_batch_size": 8}}}
    assert "adapters" in refused({**lora, **own}, "engine.llm_args")
    assert args({**lora, **own}, profile=NEW)["cuda_graph_config"]["max_batch_size"] == 8


def test_a_head_needs_a_model_that_feeds_it() -> None:
    head = {"speculation": {"method": "eagle3", "checkpoint": "/head"}}
    assert args(head)["speculative_config"]["speculative_model_dir"] == "/head"
    assert "MixtralForCausalLM" in refused(head, "engine.speculation.method", MIXTRAL)


def test_another_cuda_graph_config_replaces_ours() -> None:
    sizes = args({"llm_args": {"cuda_graph_config": {"batch_sizes": [1, 2, 4]}}})["cuda_graph_config"]
    assert sizes["batch_sizes"] == [1, 2, 4]
    assert sizes["max_batch_size"] != 64
    assert args({"llm_args": {"cuda_graph_config": None}})["cuda_graph_config"] is None


@pytest.mark.parametrize(
    ("further", "key"),
    [
        ({"max_batch_size": 4}, "max_batch_size"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"model": "x"}, "model"),
        ({"enable_lora": True}, "enable_lora"),
        ({"kv_cache_config": {"tokens_per_block": 8}}, "kv_cache_config.tokens_per_block"),
    ],
)
def test_what_the_plan_decides_is_not_said_twice(further: dict[str, Any], key: str) -> None:
    assert "is decided by" in refused({"llm_args": further}, f"engine.llm_args.{key}")


def test_objects_that_the_plan_turns_on_are_not_turned_on_by_the_way() -> None:
    for name in ("speculative_config", "lora_config"):
        assert "not turned on" in refused({"llm_args": {name: {}}}, f"engine.llm_args.{name}")
    assert "mapping" in refused({"llm_args": {"kv_cache_config": 3}}, "engine.llm_args.kv_cache_config")


def test_unknown_and_wrong_arguments_are_told_all_at_once() -> None:
    message = refused({"llm_args": {"max_beam_widht": 2, "print_iter_log": "yes"}}, "engine.llm_args")
    assert "max_beam_widht" in message and "print_iter_log" in message and "max_beam_width" in message


def test_code_of_a_checkpoint_runs_only_where_the_plan_allows_it() -> None:
    assert "trust_remote_code" not in args()
    assert args(model={"checkpoint": "x", "trust_remote_code": True})["trust_remote_code"] is True


def spec(method: str, **more: Any) -> dict[str, Any]:
    return {"speculation": {"method": method, "max_draft_len": 3, **more}}


def test_a_draft_model_is_loaded_as_it_is_and_without_the_overlap_scheduler() -> None:
    given = args(spec("draft", checkpoint="/drafts/small"))
    config = given["speculative_config"]
    assert config["decoding_type"] == "DraftTarget"
    assert (config["max_draft_len"], config["speculative_model_dir"]) == (3, "/drafts/small")
    assert given["disable_overlap_scheduler"] is True


def test_a_draft_that_was_found_elsewhere_is_named_there() -> None:
    given = llm_args(plan_for(spec("draft", checkpoint="owner/small")), LLAMA_8B, OLD, Path("/cache/small"))
    assert given["speculative_config"]["speculative_model_dir"] == "/cache/small"


@pytest.mark.parametrize(("profile", "spelling"), [(OLD, "Eagle"), (NEW, "Eagle3")])
def test_an_eagle_head_has_the_spelling_of_its_release(profile: Profile, spelling: str) -> None:
    given = args(spec("eagle3", checkpoint="/head"), profile=profile)
    assert given["speculative_config"]["decoding_type"] == spelling
    assert "disable_overlap_scheduler" not in given


def test_ngram_needs_no_checkpoint() -> None:
    given = args(spec("ngram", max_matching_ngram_size=2))
    config = given["speculative_config"]
    assert (config["decoding_type"], config["max_matching_ngram_size"]) == ("NGram", 2)
    assert given["disable_overlap_scheduler"] is True


def test_mtp_needs_a_model_with_such_layers() -> None:
    config = args(spec("mtp"), DEEPSEEK)["speculative_config"]
    assert (config["decoding_type"], config["num_nextn_predict_layers"]) == ("MTP", 3)
    assert LLAMA_8B.architecture not in MTP_ARCHITECTURES
    assert "no layers" in refused(spec("mtp"), "engine.speculation.method")


@pytest.mark.parametrize("method", ["medusa", "lookahead"])
@pytest.mark.parametrize("profile", [OLD, NEW])
def test_methods_of_engines_are_refused_by_name(method: str, profile: Profile) -> None:
    assert method in refused(spec(method), "engine.speculation.method", profile=profile)


@pytest.mark.parametrize("method", ["draft", "eagle3"])
def test_a_method_with_a_checkpoint_needs_one(method: str) -> None:
    assert "does not say where" in refused(spec(method), "engine.speculation.checkpoint")


def test_speculation_excludes_pipelines_and_the_other_sampler() -> None:
    assert "pipeline" in refused({**spec("ngram"), "parallel": {"pipeline": 2}}, "engine.parallel.pipeline")
    sampler = {"sampler_type": "TRTLLMSampler"}
    assert "TorchSampler" in refused({**spec("ngram"), "llm_args": sampler}, "engine.llm_args.sampler_type")
    assert args({"llm_args": sampler})["sampler_type"] == "TRTLLMSampler"


def test_speculation_takes_further_settings_but_not_those_that_the_plan_has() -> None:
    further = {"speculative_config": {"is_public_pool": False}}
    assert args({**spec("ngram"), "llm_args": further})["speculative_config"]["is_public_pool"] is False
    length = {"speculative_config": {"max_draft_len": 9}}
    refused({**spec("ngram"), "llm_args": length}, "engine.llm_args.speculative_config.max_draft_len")
    overlap = {"disable_overlap_scheduler": False}
    assert "must be True" in refused(
        {**spec("ngram"), "llm_args": overlap}, "engine.llm_args.disable_overlap_scheduler"
    )


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    plan = plan_for(spec("draft", checkpoint="/small"))
    check_draft(plan, LLAMA_8B, LLAMA_8B)
    with pytest.raises(PlanError, match="32,000"):
        check_draft(plan, LLAMA_8B, replace(LLAMA_8B, vocab_size=32000))
    check_draft(plan_for(spec("eagle3", checkpoint="/head")), LLAMA_8B, replace(LLAMA_8B, vocab_size=32000))


def test_target_modules_and_ranks_leave_room_for_adapters() -> None:
    lora = {"target_modules": ["attn_q", "attn_v"], "max_rank": 8, "max_loaded": 2}
    config = args({"lora": lora})["lora_config"]
    assert (config["lora_target_modules"], config["max_lora_rank"]) == (["attn_q", "attn_v"], 8)
    assert (config["max_loras"], config["max_cpu_loras"], config["lora_ckpt_source"]) == (2, 2, "hf")
    assert "lora_config" not in args()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


def test_modules_are_those_of_the_plans_adapters(tiny: Path, tmp_path: Path) -> None:
    info = resolve(Model(checkpoint=str(tiny))).info
    adapter = write_adapter(tiny, tmp_path / "a", target_modules=["q_proj", "down_proj"])
    config = args({"lora": {"adapters": {"a": str(adapter)}}, "max_seq_len": 512}, info)["lora_config"]
    assert sorted(config["lora_target_modules"]) == ["attn_q", "mlp_4h_to_h"]
    missing = {"lora": {"adapters": {"a": str(adapter)}, "target_modules": ["attn_q"]}}
    assert "mlp_4h_to_h" in refused(missing, "engine.lora.target_modules", info)
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    settings["alpha_pattern"] = {"q_proj": 2}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert "alpha_pattern" in refused({"lora": {"adapters": {"a": str(adapter)}}}, "engine.lora.adapters.a", info)


def test_the_yaml_reads_back_as_the_arguments() -> None:
    given = args(spec("ngram"))
    assert yaml.safe_load(to_yaml(given)) == given


@given(
    st.fixed_dictionaries(
        {
            "max_batch_size": st.integers(1, 512),
            "max_num_tokens": st.integers(1, 16384),
            "max_seq_len": st.integers(64, 131072),
            "chunked_prefill": st.booleans(),
            "stream_interval": st.integers(1, 8),
            "parallel": st.fixed_dictionaries({"tensor": st.sampled_from([1, 2, 4, 8])}),
            "kv_cache": st.one_of(
                st.fixed_dictionaries(
                    {"size": st.integers(1, 80).map(lambda size: f"{size}GiB"), "reuse": st.booleans()}
                ),
                st.fixed_dictionaries({"concurrency": st.integers(1, 64)}),
                st.fixed_dictionaries({"free_memory_fraction": st.floats(0.01, 0.99)}),
            ),
            "speculation": st.sampled_from([{}, {"method": "ngram"}, {"method": "eagle3", "checkpoint": "/head"}]),
        }
    ),
    st.sampled_from(sorted(PROFILES)),
)
def test_every_plan_gives_arguments_that_its_release_takes(engine: dict[str, Any], release: str) -> None:
    profile = PROFILES[release]
    given = args(engine, profile=profile)
    assert profile.llm_args_problems(given, "pytorch") == []
    assert yaml.safe_load(to_yaml(given)) == given
