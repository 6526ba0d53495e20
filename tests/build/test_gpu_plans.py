"""Any plan that the schema admits either breaks a rule or renders, with flags and fields that its release has.

Nothing falls between check and build. The tables of releases are read a second time for it (`profile_tables`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from conch_build.dry_run import dry_run
from conch_build.plan import Plan, plan_schema
from conch_build.preflight import RULES, inspect
from conch_build.profiles import profile_for
from tests.build.configs import CONFIGS
from tests.build.profile_tables import ARGUMENTS, FIELDS, FLAGS, problems_of

OUT = Path("/out")


CHECKPOINTS = {"llama-3-8b": 1, "llama-3.3-70b": 4, "qwen3-32b": 2, "mixtral-8x7b": 2, "smollm2-135m": 1}
"""Checkpoint -> GPUs of 80 GB that hold it in 16 bits."""

VALUES: dict[str, list[Any]] = {
    "target.gpus_per_node": [1, 4],
    "target.tensorrt_llm": ["1.2.1", "1.3.0rc21", "1.4.0rc4", "0.9", "new"],
    "target.container": ["mine:1", "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"],
    "quantization.format": ["int8", "int8_sq", "int4_awq", "fp8", "nvfp4", "w4a8_awq"],
    "quantization.group_size": [1, 64, 128],
    "quantization.kv_cache": ["u8", "bf16", "f32", "fp16", "fp8", "int8", "nvfp4"],
    "engine.precision": ["bf16", "fp16", "f32"],
    "engine.threads": [4],
    "engine.max_batch_size": [1, 2048, 1 << 20],
    "engine.max_num_tokens": [1, 2, 8192, 1 << 20],
    "engine.max_seq_len": [1, 2, 8192, 1 << 20],
    "engine.chunked_prefill": [False],
    "engine.kv_cache": [
        *(
            {"tokens_per_block": 16},
            {"tokens_per_block": 33},
            {"reuse": False},
            {"concurrency": 8},
            {"concurrency": 9999},
        ),
        *({"size": "1B"}, {"size": "4GiB"}, {"free_memory_fraction": 0.5}, {"free_memory_fraction": 0.00001}),
    ],
    "engine.parallel.tensor": [1, 2, 3, 8, 16],
    "engine.parallel.pipeline": [2, 3, 4, 64],
    "engine.parallel.expert": [2, 3, 4],
    "engine.speculation": [
        *({"method": "ngram"}, {"method": "eagle3"}, {"method": "mtp"}, {"method": "medusa"}, {"method": "lookahead"}),
        {"method": "draft"},
        {"method": "draft", "checkpoint": str(CONFIGS / "smollm2-135m")},
        {"method": "draft", "checkpoint": str(CONFIGS / "llama-3-8b"), "max_draft_len": 3},
        {"method": "draft", "checkpoint": "/nowhere"},
        {"method": "eagle3", "checkpoint": str(CONFIGS / "llama-3-8b")},
        {"method": "ngram", "max_draft_len": 9000},
    ],
    "engine.lora": [
        *({"target_modules": ["attn_q"]}, {"target_modules": ["nothing"]}, {"target_modules": []}),
        *({"adapters": {"one": "/nowhere"}}, {"target_modules": ["attn_q"], "max_rank": 4096}),
    ],
    "engine.build_args": [
        *({"gemm_plugin": "auto"}, {"reduce_fusion": True}, {"max_batch_size": 8}, {"tp_size": 2}, {"x y": ""}),
        *({"gather_context_logits": True}, {"gather_context_logits": "yes"}, {"fast_build": True}, {"workers": -1}),
    ],
    "engine.llm_args": [
        *({"cuda_graph_config": None}, {"cuda_graph_config": {"enable_padding": True}}, {"cuda_graph_config": 1}),
        *({"stream_interval": 2}, {"sampler_type": "TRTLLMSampler"}, {"moe_config": {"backend": "CUTLASS"}}),
        *({"lora_config": {}}, {"nothing": 1}, {"kv_cache_config": {"dtype": "fp8"}}, {"kv_cache_config": {}}),
        *({"disable_overlap_scheduler": False}, {"attn_backend": 3}, {"speculative_config": {}}, {"": 0}),
    ],
    "serving.replicas": [2, 9],
    "serving.triton.layout": ["tokens", "ensemble", "llmapi"],
    "serving.triton.instances": [2, 9],
    "serving.triton.launch": ["orchestrator"],
    "serving.disaggregated": [
        *(
            {},
            {"context": {"tensor": 2}},
            {"context": {"pipeline": 2}, "generation": {"tensor": 2}},
            {"hosts": ["a", "a"]},
        ),
        *({"router": "kv_cache_aware"}, {"generation": {"instances": 9}}, {"max_local_prefill_length": 64}),
        {"context": {"llm_args": {"disable_overlap_scheduler": False}}},
        {"context": {"llm_args": {"cache_transceiver_config": {"max_tokens_in_buffer": 1}}}},
    ],
}
"""Key -> values that a person may write there, sound and unsound."""


SCHEMA = plan_schema()
FREE = {"engine.build_args", "engine.llm_args", "engine.lora.adapters", "model.checkpoint", "engine.backend", "name"}
"""Keys whose values the schema does not tell, or that each plan here has."""


def leaves(part: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Key -> what the schema says of it."""
    found: dict[str, dict[str, Any]] = {}
    for name, own in part["properties"].items():
        names = [option["$ref"].rpartition("/")[2] for option in (own, *own.get("anyOf", ())) if "$ref" in option]
        found |= leaves(SCHEMA["$defs"][names[0]], f"{prefix}{name}.") if names else {prefix + name: own}
    return {key: own for key, own in found.items() if key not in FREE}


def values(own: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What the schema admits there, small numbers first."""
    if "anyOf" in own:
        return st.one_of([values(option) for option in own["anyOf"]])
    if "const" in own or "enum" in own:
        return st.sampled_from(own.get("enum") or [own["const"]])
    kind = own.get("type")
    if kind == "integer":
        low = own.get("minimum", 0)
        return st.one_of(st.sampled_from([low, low + 1, 2, 4, 8]), st.integers(low, own.get("maximum", 1 << 20)))
    if kind == "number":
        return st.sampled_from([0.01, 0.5, 0.99])
    if kind == "array":
        return st.lists(values(own["items"]), max_size=3)
    texts = {"boolean": st.booleans(), "null": st.none(), "object": st.just({})}
    return texts.get(str(kind), st.sampled_from([*own.get("examples", ()), "x", "a-b"]))


def of_table(facts: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values for a field or flag, right by its table for the most part."""
    wrong = [True, 0, 1, 8, 0.5, "", "auto", "enable", None, [], {}]
    return st.sampled_from([*facts.get("choices", ()), *([facts["default"]] if "default" in facts else ()), *wrong])


def arguments() -> st.SearchStrategy[dict[str, Any]]:
    """`engine.llm_args`: any argument of any release, objects with any of their fields."""

    def value_of(name: str) -> st.SearchStrategy[tuple[str, Any]]:
        facts = ARGUMENTS[name]
        part = next((kind for kind in facts["type"].split("|") if kind in FIELDS), None)
        if part is None:
            return st.tuples(st.just(name), of_table(facts))
        fields = st.sampled_from(sorted(FIELDS[part])).flatmap(
            lambda field: st.tuples(st.just(field), of_table(FIELDS[part][field]))
        )
        return st.tuples(st.just(name), st.lists(fields, max_size=2).map(dict))

    return st.lists(st.sampled_from(sorted(ARGUMENTS)).flatmap(value_of), max_size=2).map(dict)


def flags() -> st.SearchStrategy[dict[str, Any]]:
    """`engine.build_args`: any flag of `trtllm-build`."""
    known = FLAGS["trtllm-build"]["flags"]

    def value_of(flag: str) -> st.SearchStrategy[tuple[str, Any]]:
        plain = of_table(known[flag]).filter(lambda value: isinstance(value, (str, int)))
        return st.tuples(st.just(flag.removeprefix("--")), plain)

    return st.lists(st.sampled_from(sorted(known)).flatmap(value_of), max_size=2).map(dict)


LEAVES = leaves(SCHEMA)
KEYS = sorted({*VALUES, *LEAVES})


def value_for(key: str) -> st.SearchStrategy[Any]:
    further = {"engine.llm_args": arguments(), "engine.build_args": flags()}
    sources = [st.sampled_from(VALUES[key])] if key in VALUES else []
    sources += [further[key]] if key in further else []
    sources += [arguments()] if key.endswith(".llm_args") and key not in further else []
    return st.one_of([*sources, *([values(LEAVES[key])] if key in LEAVES else [])])


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """A plan that fits, with up to five keys set to something else."""
    name = draw(st.sampled_from(sorted(CHECKPOINTS)))
    gpu = draw(st.sampled_from(["a100", "h100", "h200", "b200", "h100", "l40s", "a10", "rtx5090", "tpu"]))
    data: dict[str, Any] = {
        "name": "model",
        "model": {"checkpoint": str(CONFIGS / name)},
        "target": {"gpu": gpu},
        "engine": {
            "backend": draw(st.sampled_from(["tensorrt", "pytorch", "tensorrt", "pytorch", "openvino"])),
            "parallel": {"tensor": CHECKPOINTS[name]},
        },
    }
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=5, unique=True)):
        *parts, last = key.split(".")
        place = data
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = draw(value_for(key))
    return data


PLANS = plans()


def plan_of(data: dict[str, Any]) -> Plan | None:
    """None where keys were drawn that exclude each other in the schema itself."""
    try:
        return Plan.model_validate(data)
    except ValidationError:
        return None


def check_or_render(data: dict[str, Any]) -> None:
    plan = plan_of(data)
    if plan is None:
        return
    report = inspect(plan)
    assert all(violation.rule in RULES and violation.message for violation in report.violations)
    if not report.works:
        return
    made = dry_run(plan, out=OUT)
    assert made.text()
    problems = problems_of(made.recipe, profile_for(plan).name)
    assert not problems, problems


@given(PLANS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_breaks_a_rule_or_renders(data: dict[str, Any]) -> None:
    check_or_render(data)


@pytest.mark.slow
@given(PLANS)
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_plans_break_a_rule_or_render(data: dict[str, Any]) -> None:
    check_or_render(data)
