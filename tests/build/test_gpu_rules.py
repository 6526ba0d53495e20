"""Every rule about GPU plans, broken and just kept. Checkpoints are config.json alone unless weights are the point."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from conch_build.cli import build_commands
from conch_build.plan import Plan, parse_plan
from conch_build.preflight import Violation, check
from tests.build.configs import CONFIGS, write_config
from tests.build.tiny import write_tokenizer
from tests.build.tiny_adapter import write_adapter

Parts = dict[str, Any]


def gpu_plan(checkpoint: Path | str = CONFIGS / "llama-3-8b", **parts: Any) -> Plan:
    """Llama-3-8B on an H100 as an engine, unless a test says otherwise. `engine` parts go over ours."""
    engine = {"backend": "tensorrt", "max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 8192}
    data = {
        "name": "model",
        "model": {"checkpoint": str(checkpoint)},
        "target": {"gpu": "h100", **parts.pop("target", {})},
        "engine": {**engine, **parts.pop("engine", {})},
        **parts,
    }
    return parse_plan(yaml.safe_dump(data))


def found(checkpoint: Path | str = CONFIGS / "llama-3-8b", **parts: Any) -> dict[str, Violation]:
    """What is found, but for the remark that there are no weights."""
    violations = check(gpu_plan(checkpoint, **parts))
    return {violation.rule: violation for violation in violations if violation.rule != "checkpoint.config-only"}


LLM_API: Parts = {"engine": {"backend": "pytorch"}}


def llm_api(**engine: Any) -> Parts:
    return {"engine": {"backend": "pytorch", **engine}}


B200: Parts = {"target": {"gpu": "b200"}}
ENGINE_70B = "llama-3.3-70b"

BROKEN: list[tuple[str, str, str, Parts]] = [
    # rule, key of the plan, checkpoint, parts
    ("target.gpu", "target.gpu", "llama-3-8b", {"target": {"gpu": None}}),
    ("target.gpu", "target.gpu", "llama-3-8b", {"target": {"gpu": "h1000"}}),
    ("target.release", "target.tensorrt_llm", "llama-3-8b", {"target": {"tensorrt_llm": "0.9.0"}}),
    ("target.backend", "engine.backend", "llama-3-8b", {"target": {"tensorrt_llm": "1.3.0rc21"}}),
    (
        "target.container",
        "target.container",
        "llama-3-8b",
        {"target": {"container": "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"}},
    ),
    ("plan.other-backend", "engine.llm_args", "llama-3-8b", {"engine": {"llm_args": {"stream_interval": 2}}}),
    ("plan.other-backend", "engine.build_args", "llama-3-8b", llm_api(build_args={"gemm_plugin": "auto"})),
    ("plan.other-backend", "serving.disaggregated", "llama-3-8b", {"serving": {"disaggregated": {}}}),
    ("serving.layout", "serving.triton.layout", "llama-3-8b", {"serving": {"triton": {"layout": "llmapi"}}}),
    ("limits.seq-len", "engine.max_seq_len", "llama-3-8b", {"engine": {"max_seq_len": 8193}}),
    (
        "limits.unchunked-prefill",
        "engine.max_num_tokens",
        "llama-3-8b",
        {"engine": {"chunked_prefill": False, "max_num_tokens": 8190}},
    ),
    ("limits.block-size", "engine.kv_cache.tokens_per_block", "llama-3-8b", llm_api(kv_cache={"tokens_per_block": 33})),
    ("parallel.heads", "engine.parallel.tensor", "smollm2-135m", {"engine": {"parallel": {"tensor": 2}}}),
    ("parallel.heads", "engine.parallel.tensor", "llama-3-8b", llm_api(parallel={"tensor": 6})),
    ("parallel.layers", "engine.parallel.pipeline", "llama-3-8b", {"engine": {"parallel": {"pipeline": 3}}}),
    ("parallel.layers", "engine.parallel.pipeline", "llama-3-8b", llm_api(parallel={"pipeline": 33})),
    (
        "parallel.experts",
        "engine.parallel.expert",
        "llama-3-8b",
        {"engine": {"parallel": {"tensor": 2, "expert": 2}}},
    ),
    (
        "parallel.experts",
        "engine.parallel.expert",
        "mixtral-8x7b",
        {"engine": {"parallel": {"tensor": 4, "expert": 3}}},
    ),
    (
        "parallel.world-size",
        "serving.triton.instances",
        "llama-3-8b",
        {"serving": {"triton": {"instances": 3, "launch": "orchestrator"}}, "engine": {"parallel": {"tensor": 4}}},
    ),
    (
        "parallel.replicas",
        "serving.replicas",
        "llama-3-8b",
        {"serving": {"replicas": 3}, "engine": {"parallel": {"tensor": 4}}},
    ),
    (
        "parallel.world-size",
        "engine.parallel",
        "llama-3.3-70b",
        {"engine": {"parallel": {"tensor": 4, "pipeline": 5}}, "target": {"gpus_per_node": 8}},
    ),
    ("precision.backend", "quantization.format", "llama-3-8b", {**LLM_API, "quantization": {"format": "int8_sq"}}),
    ("precision.backend", "quantization.kv_cache", "llama-3-8b", {**LLM_API, "quantization": {"kv_cache": "int8"}}),
    ("precision.backend", "quantization.kv_cache", "llama-3-8b", {"quantization": {"kv_cache": "nvfp4"}}),
    ("precision.format", "quantization.format", "llama-3-8b", {"quantization": {"format": "nvfp4"}}),
    (
        "precision.format",
        "quantization.format",
        "llama-3-8b",
        {"quantization": {"format": "fp8", "kv_cache": "bf16"}, "target": {"gpu": "a100"}},
    ),
    (
        "precision.format",
        "quantization.format",
        "llama-3-8b",
        {**LLM_API, "quantization": {"format": "int4_awq"}, "target": {"gpu": "b200"}},
    ),
    (
        "precision.format",
        "quantization.format",
        "llama-3-8b",
        {"quantization": {"format": "w4a8_awq"}, "target": {"gpu": "a100"}},
    ),
    *(
        ("precision.family", "quantization.format", model, {"quantization": {"format": form}, "target": {"gpu": gpu}})
        for model, form, gpu in (
            ("mixtral-8x7b", "int4_awq", "h200"),
            ("mixtral-8x7b", "int8_sq", "h200"),
            ("qwen3-32b", "int4_awq", "h100"),
            ("qwen3-32b", "w4a8_awq", "l40s"),
        )
    ),
    (
        "precision.experts",
        "quantization.format",
        "mixtral-8x7b",
        {**llm_api(parallel={"tensor": 2}), "quantization": {"format": "int4_awq"}, "target": {"gpu": "a100"}},
    ),
    (
        "precision.kv-cache",
        "quantization.kv_cache",
        "llama-3-8b",
        {**LLM_API, "quantization": {"kv_cache": "nvfp4"}},
    ),
    ("precision.int8-kv-reuse", "quantization.kv_cache", "llama-3-8b", {"quantization": {"kv_cache": "int8"}}),
    (
        "precision.fp8-kv-reuse",
        "quantization.kv_cache",
        "llama-3-8b",
        {"quantization": {"format": "int4_awq", "kv_cache": "fp8"}},
    ),
    *(
        ("precision.format", "quantization.format", "llama-3-8b", {"quantization": {"format": form}, **B200})
        for form in ("int8", "int8_sq", "int4_awq", "w4a8_awq")
    ),
    ("precision.kv-cache", "quantization.kv_cache", "llama-3-8b", {"quantization": {"kv_cache": "int8"}, **B200}),
    ("precision.activations", "engine.precision", "llama-3-8b", {"engine": {"precision": "f32"}}),
    (
        "precision.group-size",
        "quantization.group_size",
        "llama-3-8b",
        {"quantization": {"format": "int4_awq", "group_size": 32}},
    ),
    ("precision.kv-activations", "quantization.kv_cache", "llama-3-8b", {"quantization": {"kv_cache": "fp16"}}),
    *(
        (
            "lora.format",
            "engine.lora",
            "llama-3-8b",
            {"quantization": {"format": form}, "engine": {"lora": {"target_modules": ["attn_q"]}}, **gpu},
        )
        for form, gpu in (("int8_sq", {}), ("nvfp4", B200))
    ),
    ("lora.modules", "engine.lora.target_modules", "llama-3-8b", llm_api(lora={"target_modules": ["q_proj"]})),
    ("lora.modules", "engine.lora.target_modules", "llama-3-8b", {"engine": {"lora": {"target_modules": ["q"]}}}),
    ("memory.weights", "engine.parallel", "llama-3.3-70b", {}),
    (
        "memory.kv-cache",
        "engine.kv_cache",
        "llama-3-8b",
        {"engine": {"kv_cache": {"free_memory_fraction": 0.001}}},
    ),
    ("memory.kv-size", "engine.kv_cache.concurrency", "llama-3-8b", {"engine": {"kv_cache": {"concurrency": 256}}}),
    ("memory.kv-size", "engine.kv_cache.size", "llama-3-8b", llm_api(kv_cache={"size": "70GiB"})),
    (
        "memory.adapters",
        "engine.lora",
        "llama-3-8b",
        llm_api(lora={"max_rank": 512, "max_loaded": 128, "target_modules": ["attn_q"]}),
    ),
    (
        "speculation.unavailable",
        "engine.speculation.method",
        "llama-3-8b",
        {"engine": {"speculation": {"method": "mtp"}}},
    ),
    (
        "speculation.unavailable",
        "engine.speculation.method",
        "llama-3-8b",
        llm_api(speculation={"method": "lookahead"}),
    ),
    ("speculation.mtp", "engine.speculation.method", "llama-3-8b", llm_api(speculation={"method": "mtp"})),
    (
        "speculation.eagle3",
        "engine.speculation.method",
        "mixtral-8x7b",
        llm_api(speculation={"method": "eagle3", "checkpoint": "/head"}, parallel={"tensor": 2}),
    ),
    (
        "speculation.checkpoint",
        "engine.speculation.checkpoint",
        "llama-3-8b",
        llm_api(speculation={"method": "eagle3"}),
    ),
    (
        "speculation.context-logits",
        "engine.build_args.gather_context_logits",
        "llama-3-8b",
        {"engine": {"speculation": {"method": "lookahead"}, "build_args": {"gather_context_logits": True}}},
    ),
    (
        "speculation.pipeline",
        "engine.parallel.pipeline",
        "llama-3-8b",
        llm_api(speculation={"method": "ngram"}, parallel={"pipeline": 2}),
    ),
    (
        "arguments.trtllm-build",
        "engine.build_args",
        "llama-3-8b",
        {"engine": {"build_args": {"use_custom_all_reduce": "disable"}}},
    ),
    ("arguments.trtllm-build", "engine.build_args", "llama-3-8b", {"engine": {"build_args": {"streamingllm": True}}}),
    ("arguments.llm-api", "engine.llm_args.max_batch", "llama-3-8b", llm_api(llm_args={"max_batch": 8})),
    (
        "arguments.llm-api",
        "engine.llm_args.kv_cache_config.reuse",
        "llama-3-8b",
        llm_api(llm_args={"kv_cache_config": {"reuse": True}}),
    ),
    ("arguments.decided", "engine.llm_args.max_batch_size", "llama-3-8b", llm_api(llm_args={"max_batch_size": 8})),
    (
        "rendering.engine",
        "engine.parallel.expert",
        "mixtral-8x7b",
        {"engine": {"parallel": {"tensor": 2, "expert": 2}}, "quantization": {"format": "fp8"}},
    ),
    (
        "rendering.llm-api",
        "engine.llm_args.disable_overlap_scheduler",
        "llama-3-8b",
        llm_api(speculation={"method": "ngram"}, llm_args={"disable_overlap_scheduler": False}),
    ),
    (
        "disaggregated.cluster",
        "serving.disaggregated.hosts",
        "llama-3-8b",
        {**LLM_API, "serving": {"disaggregated": {"hosts": ["http://one:80"]}}},
    ),
    (
        "disaggregated.cluster",
        "serving.disaggregated",
        "llama-3-8b",
        {**LLM_API, "serving": {"disaggregated": {"context": {"instances": 9}}}},
    ),
    (
        "disaggregated.cluster",
        "serving.disaggregated.port",
        "llama-3-8b",
        {**LLM_API, "serving": {"disaggregated": {"port": 0}}},
    ),
    (
        "rendering.repository",
        "engine.speculation.max_draft_len",
        "llama-3-8b",
        {"engine": {"speculation": {"method": "lookahead", "max_draft_len": 1}}},
    ),
    ("arguments.trtllm-build", "engine.build_args", "llama-3-8b", {"engine": {"build_args": {"max_beam_width": -3}}}),
]


@pytest.mark.parametrize(
    ("rule", "where", "checkpoint", "parts"),
    BROKEN,
    ids=[f"{entry[0]}-{number}" for number, entry in enumerate(BROKEN)],
)
def test_a_broken_rule_is_named_with_its_key_and_a_fix(rule: str, where: str, checkpoint: str, parts: Parts) -> None:
    violations = found(CONFIGS / checkpoint, **parts)
    assert rule in violations, violations
    violation = violations[rule]
    assert (violation.where, violation.severity) == (where, "error")
    assert violation.message and violation.fix


@pytest.mark.parametrize(
    ("stored", "severity"),
    [({"quant_method": "bitsandbytes"}, "error"), ({"quant_method": "compressed-tensors"}, "warning")],
)
def test_a_checkpoint_quantized_in_a_way_that_the_llm_api_does_not_read_is_told(
    tmp_path: Path, stored: dict[str, str], severity: str
) -> None:
    violation = found(write_config(tmp_path / "a", quantization_config=stored), **LLM_API)["precision.stored-method"]
    assert (violation.where, violation.severity) == ("model.checkpoint", severity)
    assert stored["quant_method"] in violation.message


def test_keys_of_triton_and_gateway_are_told_to_do_nothing_for_disaggregated_workers() -> None:
    serving = {"disaggregated": {}, "triton": {"http_port": 9000}, "gateway": {"port": 9001}}
    violations = check(gpu_plan(**LLM_API, serving=serving))
    told = [violation.where for violation in violations if violation.rule == "plan.unused"]
    assert told == ["serving.triton.http_port", "serving.gateway.port"]


WARNED: list[tuple[str, str, Parts]] = [
    ("plan.other-backend", "engine.threads", {"engine": {"threads": 4}}),
    (
        "precision.kv-cache",
        "quantization.kv_cache",
        {"quantization": {"kv_cache": "fp8"}, "target": {"gpu": "a100"}},
    ),
    (
        "calibration.awq-samples",
        "quantization.calibration.samples",
        {"quantization": {"format": "int4_awq", "calibration": {"samples": 64}}},
    ),
    ("limits.num-tokens-below-batch", "engine.max_num_tokens", llm_api(max_num_tokens=63)),
    (
        "parallel.kv-copies",
        "engine.parallel.tensor",
        {"engine": {"parallel": {"tensor": 16}}, "target": {"gpus_per_node": 16}},
    ),
    ("parallel.layers", "engine.parallel.pipeline", llm_api(parallel={"pipeline": 3})),
    ("parallel.orchestrator", "serving.triton.launch", {"serving": {"triton": {"launch": "orchestrator"}}}),
    (
        "memory.adapter-cache",
        "engine.lora",
        {"engine": {"lora": {"target_modules": ["attn_q"], "max_rank": 64, "max_loaded": 16}}},
    ),
    ("memory.batch", "engine.max_batch_size", llm_api(max_batch_size=12_000)),
    (
        "arguments.llm-api-silent",
        "engine.llm_args.attn_backend",
        llm_api(llm_args={"attn_backend": "XFORMERS"}),
    ),
]


@pytest.mark.parametrize(("rule", "where", "parts"), WARNED, ids=[rule for rule, _, _ in WARNED])
def test_what_works_but_not_as_hoped_is_a_warning(rule: str, where: str, parts: Parts) -> None:
    violation = found(**parts)[rule]
    assert (violation.where, violation.severity) == (where, "warning")


KEPT: list[tuple[str, Parts]] = [
    ("llama-3-8b", {}),
    ("llama-3-8b", LLM_API),
    ("llama-3-8b", {"target": {"container": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"}}),
    ("llama-3-8b", {"target": {"container": "registry.example/own:1"}}),
    ("llama-3-8b", {"engine": {"chunked_prefill": False, "max_num_tokens": 8191}}),
    ("llama-3-8b", {"engine": {"parallel": {"tensor": 8}}}),
    ("llama-3-8b", {"engine": {"parallel": {"tensor": 2, "pipeline": 2}}}),
    ("llama-3.3-70b", {"engine": {"parallel": {"tensor": 4}}}),
    ("mixtral-8x7b", {"engine": {"parallel": {"tensor": 4, "expert": 4}}}),
    ("qwen3-32b", {"quantization": {"format": "fp8"}}),
    ("qwen3-32b", {**LLM_API, "quantization": {"format": "int4_awq"}}),
    ("mixtral-8x7b", {"quantization": {"format": "fp8"}, "target": {"gpu": "h200"}}),
    ("mixtral-8x7b", {"quantization": {"format": "nvfp4"}, "target": {"gpu": "b200"}}),
    ("smollm2-135m", {"target": {"gpu": "l4"}}),
    ("llama-3-8b", {"quantization": {"format": "int8_sq"}, "target": {"gpu": "a100"}}),
    ("llama-3-8b", {"quantization": {"format": "int4_awq"}, "target": {"gpu": "a10"}}),
    ("llama-3-8b", {"quantization": {"format": "fp8"}, "target": {"gpu": "l40s"}}),
    ("llama-3-8b", {"quantization": {"format": "nvfp4"}, "target": {"gpu": "b200"}}),
    ("llama-3-8b", {**LLM_API, "quantization": {"format": "nvfp4", "kv_cache": "nvfp4"}, "target": {"gpu": "b200"}}),
    ("llama-3-8b", {**LLM_API, "quantization": {"kv_cache": "fp8"}, "target": {"gpu": "a100"}}),
    (
        "llama-3-8b",
        {
            "quantization": {"kv_cache": "int8"},
            "engine": {"chunked_prefill": False, "kv_cache": {"reuse": False}},
        },
    ),
    ("mixtral-8x7b", {**llm_api(parallel={"tensor": 2}), "quantization": {"format": "w4a8_awq"}}),
    ("llama-3-8b", {"engine": {"kv_cache": {"concurrency": 32, "tokens_per_block": 64}}}),
    ("llama-3-8b", {"engine": {"speculation": {"method": "lookahead"}}}),
    ("llama-3-8b", llm_api(speculation={"method": "ngram"})),
    ("llama-3-8b", {"engine": {"lora": {"target_modules": ["attn_q"], "max_rank": 8}}}),
    (
        "llama-3-8b",
        {"quantization": {"format": "fp8"}, "engine": {"lora": {"target_modules": ["attn_q"], "max_rank": 8}}},
    ),
    ("llama-3-8b", {"engine": {"build_args": {"gemm_plugin": "fp8", "reduce_fusion": True}}}),
    ("llama-3-8b", llm_api(llm_args={"cuda_graph_config": {"enable_padding": False, "max_batch_size": 64}})),
    ("llama-3-8b", {**LLM_API, "serving": {"disaggregated": {"context": {"tensor": 2}}}}),
    ("llama-3-8b", {"serving": {"triton": {"instances": 2, "launch": "orchestrator"}}}),
]


@pytest.mark.parametrize(("checkpoint", "parts"), KEPT, ids=[f"{entry}" for entry in range(len(KEPT))])
def test_a_plan_that_keeps_every_rule_is_not_spoken_of(checkpoint: str, parts: Parts) -> None:
    assert found(CONFIGS / checkpoint, **parts) == {}


def test_a_path_that_quantize_py_takes_for_another_model_is_refused_where_it_is_read(tmp_path: Path) -> None:
    checkpoint = tmp_path / "prompts" / "llama"
    shutil.copytree(CONFIGS / "llama-3-8b", checkpoint)
    violation = found(checkpoint, quantization={"format": "fp8"})["precision.path"]
    assert violation.where == "model.checkpoint" and "`mpt`" in violation.message
    assert not found(checkpoint) and not found(checkpoint, **LLM_API, quantization={"format": "fp8"})


def test_experts_of_disaggregated_workers_are_spread_over_the_gpus_of_each() -> None:
    cluster = {"disaggregated": {"context": {"tensor": 2}, "generation": {"tensor": 2}}}
    assert found(CONFIGS / "mixtral-8x7b", **llm_api(parallel={"expert": 2}), serving=cluster) == {}


def test_disaggregated_workers_are_quantized_by_the_same_rules() -> None:
    quantization = {"format": "nvfp4", "calibration": {"data": "self"}}
    plan: Parts = {"target": {"gpu": "b200"}, "quantization": quantization, "serving": {"disaggregated": {}}}
    assert found(**LLM_API, **plan)["rendering.llm-api"].where == "quantization.calibration.data"


def test_all_that_is_wrong_comes_at_once() -> None:
    violations = found(
        CONFIGS / "llama-3.3-70b",
        target={"gpu": "a100"},
        quantization={"format": "nvfp4"},
        engine={"parallel": {"tensor": 3}, "precision": "f32", "max_seq_len": 200_000, "build_args": {"tp_size": 2}},
        serving={"triton": {"layout": "llmapi"}},
    )
    assert set(violations) == {
        "precision.format",
        "parallel.heads",
        "precision.activations",
        "limits.seq-len",
        "arguments.trtllm-build",
        "serving.layout",
    }


def test_check_prints_what_a_gpu_holds_and_a_paragraph_for_each_problem(tmp_path: Path) -> None:
    plan = {
        "name": "model",
        "model": {"checkpoint": str(CONFIGS / "llama-3.3-70b")},
        "target": {"gpu": "a100"},
        "quantization": {"format": "fp8", "kv_cache": "fp8"},
        "engine": {"backend": "tensorrt", "parallel": {"tensor": 4}, "build_args": {"streamingllm": True}},
    }
    (tmp_path / "conch.yaml").write_text(yaml.safe_dump(plan))
    done = CliRunner().invoke(build_commands, ["check", str(tmp_path / "conch.yaml")])
    assert done.exit_code == 2
    head, *table = done.stdout.partition("\n\n")[0].splitlines()
    assert head == "A100 SXM 80 GB, 4 of them, each 80.00 GiB"
    assert [row[2:14].rstrip() for row in table] == [
        *("weights", "activations", "logits", "workspace", "CUDA context", "NCCL", "KV cache", "left"),
    ]
    assert "tokens:" in table[-2] and "requests of 4,096" in table[-2]
    for line in ("error precision.format", "error arguments.trtllm-build", "warning precision.kv-cache"):
        assert f"\n{line}  " in done.stdout
    done = CliRunner().invoke(build_commands, ["check", str(tmp_path / "conch.yaml"), "--json"])
    report = json.loads(done.stdout)
    assert report["gpu_memory"]["kv_bytes_per_token"] == 40_960 and not report["ok"]


def test_a_config_alone_is_said_to_be_one() -> None:
    (violation,) = check(gpu_plan())
    assert (violation.rule, violation.severity) == ("checkpoint.config-only", "warning")


def test_the_fix_of_a_model_that_is_too_large_is_the_number_of_gpus_that_hold_it() -> None:
    violation = found(CONFIGS / "llama-3.3-70b")["memory.weights"]
    assert "`engine.parallel.tensor: 2`" in violation.fix
    assert "weights" in violation.message and "H100 SXM" in violation.message


def test_kv_heads_and_columns_must_be_split_as_well_as_heads(tmp_path: Path) -> None:
    folder = write_config(
        tmp_path, num_attention_heads=48, num_key_value_heads=8, head_dim=128, intermediate_size=14338
    )
    split: Parts = {"engine": {"parallel": {"tensor": 3}}}
    violations = found(folder, **split)
    assert {violations[rule].where for rule in ("parallel.kv-heads", "parallel.widths")} == {"engine.parallel.tensor"}
    even = write_config(tmp_path / "even", num_attention_heads=48, num_key_value_heads=6, head_dim=128)
    write_config(even, num_attention_heads=48, num_key_value_heads=6, head_dim=128, intermediate_size=14337)
    assert not found(even, **split).keys() & {"parallel.kv-heads", "parallel.widths"}


def test_an_architecture_without_engines_is_pointed_to_the_llm_api(tmp_path: Path) -> None:
    keys: Parts = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_local_experts": 8,
        "head_dim": 128,
    }
    folder = write_config(tmp_path, **keys)
    violation = found(folder)["target.architecture"]
    assert violation.severity == "error" and "pytorch" in violation.fix
    assert "target.architecture" not in found(folder, **LLM_API)


# Checkpoints that come quantized


def test_a_stored_format_needs_kernels_too(tmp_path: Path) -> None:
    folder = write_config(tmp_path, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert found(folder, **LLM_API)["precision.stored-format"].where == "model.checkpoint"
    assert "precision.stored-format" not in found(folder, target={"gpu": "b200"}, **LLM_API)


def test_a_quantized_checkpoint_is_not_quantized_again(tmp_path: Path) -> None:
    folder = write_config(tmp_path, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    assert "quant.already-quantized" in found(folder, quantization={"format": "fp8"}, **LLM_API)
    assert found(folder, **LLM_API) == {}


def test_fp8_without_scales_was_never_calibrated(tiny_llama: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(tiny_llama, tmp_path / "fp8")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8"}
    (folder / "config.json").write_text(json.dumps(config))
    limits = {"engine": {"backend": "pytorch", "max_seq_len": 512}}
    violation = found(folder, **limits)["precision.fp8-uncalibrated"]
    assert "`input_scale`" in violation.message and "calibrates" in violation.fix
    (folder / "model.safetensors").unlink()
    import numpy as np

    scales = {f"model.layers.0.mlp.up_proj.{name}": np.ones(1, np.float32) for name in ("weight_scale", "input_scale")}
    save_file(scales, folder / "model.safetensors")
    assert load_file(folder / "model.safetensors").keys() == scales.keys()
    assert "precision.fp8-uncalibrated" not in found(folder, **limits)


# Draft models


def with_draft(draft: Path, **engine: Any) -> Parts:
    return {"engine": {"speculation": {"method": "draft", "checkpoint": str(draft)}, **engine}}


def test_a_draft_must_speak_the_targets_vocabulary(tmp_path: Path) -> None:
    draft = write_config(tmp_path, num_hidden_layers=2)
    assert "speculation.vocabulary" not in found(**with_draft(draft))
    other = write_config(tmp_path / "other", num_hidden_layers=2, vocab_size=128_257)
    for backend in ("tensorrt", "pytorch"):
        violation = found(**with_draft(other, backend=backend))["speculation.vocabulary"]
        assert "128,257" in violation.message and "128,256" in violation.message


def test_a_draft_needs_reuse_in_engines(tmp_path: Path) -> None:
    draft = write_config(tmp_path, num_hidden_layers=2)
    violation = found(**with_draft(draft, kv_cache={"reuse": False}))["speculation.reuse"]
    assert violation.where == "engine.kv_cache.reuse"
    assert "speculation.reuse" not in found(**with_draft(draft))


def test_a_draft_must_fit_beside_its_target(tmp_path: Path) -> None:
    tight: Parts = {"target": {"gpu": "l4"}}
    draft = write_config(tmp_path, num_hidden_layers=8)
    violation = found(**tight, **with_draft(draft))["memory.draft"]
    assert violation.where == "engine.speculation.checkpoint"
    small = write_config(tmp_path / "small", num_hidden_layers=1)
    assert "memory.draft" not in found(**tight, **with_draft(small))


def test_two_engines_on_one_gpu_are_told_to_fix_their_cache(tmp_path: Path) -> None:
    draft = write_config(tmp_path, num_hidden_layers=2)
    assert found(**with_draft(draft))["memory.shared-gpu"].severity == "warning"
    assert "memory.shared-gpu" not in found(**with_draft(draft, kv_cache={"size": "20GiB"}))


# Adapters


def test_adapters_for_a_gpu_are_examined_too(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tiny_llama, tmp_path / "adapter", r=8)
    limits = {"backend": "pytorch", "max_seq_len": 512}
    narrow = {"max_rank": 4, "adapters": {"one": str(adapter)}}
    assert found(tiny_llama, engine={**limits, "lora": narrow})["lora.rank"].where == "engine.lora.adapters.one"
    guessing = {**limits, "lora": {**narrow, "max_rank": 8}, "speculation": {"method": "ngram"}}
    assert found(tiny_llama, engine=guessing)["lora.untested"].severity == "warning"
    wide = {"max_rank": 8, "adapters": {"one": str(adapter)}}
    assert not found(tiny_llama, engine={**limits, "lora": wide}).keys() & {"lora.rank", "lora.untested"}


# Text


def test_two_start_tokens_are_seen_before_anyone_asks(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "smollm2-135m", vocab_size=320)
    write_tokenizer(folder)
    assert "text.double-bos" not in found(folder)
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    violation = found(folder)["text.double-bos"]
    assert violation.severity == "warning" and "<|im_start|>" in violation.message


def test_a_turn_must_end_by_an_end_token(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "smollm2-135m", vocab_size=320)
    write_tokenizer(folder)
    assert "text.chat-end" not in found(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|endoftext|>"}))
    write_config(folder, "smollm2-135m", vocab_size=320, eos_token_id=0)
    violation = found(folder)["text.chat-end"]
    assert "'<|im_end|>'" in violation.message and "Add 2" in violation.fix


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path, "smollm2-135m", vocab_size=64)
    write_tokenizer(folder)
    assert found(folder)["text.vocabulary"].severity == "error"
    assert "text.vocabulary" not in found(write_config(folder, "smollm2-135m", vocab_size=320))
