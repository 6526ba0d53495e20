"""The rungs of a plan: what each adds, and what is refused."""

from __future__ import annotations

import pytest

from conch.ladder.rungs import CHUNK_TOKENS, check, chosen, plan_of, rungs_of
from conch.ladder.workload import LONGEST_PROMPT
from conch_build.errors import InputError, UnsupportedError
from conch_build.plan import Plan, parse_plan
from tests.conftest import SAMPLE_PLAN

PLAN = parse_plan(SAMPLE_PLAN)
ADAPTERS = {"a": "/a", "b": "/b"}


def plans(plan: Plan = PLAN) -> dict[str, Plan]:
    return {rung.name: plan_of(rung, plan, ADAPTERS) for rung in rungs_of(plan)}


def test_each_rung_adds_one_layer_to_the_one_that_it_stands_on() -> None:
    found, keys = plans(), ("quantization", "engine")

    def layers(name: str) -> set[str]:
        plan, below = found[name], found[next(rung.over or "" for rung in rungs_of(PLAN) if rung.name == name)]
        ours, theirs = ({f"{key}.{n}": v for key in keys for n, v in getattr(p, key)} for p in (plan, below))
        return {key for key in ours if ours[key] != theirs[key]}

    assert layers("reuse") == {"engine.kv_cache"}
    assert layers("chunked") == {"engine.chunked_prefill", "engine.max_num_tokens"}
    assert layers("int8") == {"quantization.format", "quantization.kv_cache"}
    assert layers("int4") == {"quantization.format"}
    assert layers("speculation") == {"engine.speculation"}
    assert layers("apart") == {"engine.lora"} and layers("lora") == set()


def test_in_flight_batching_alone_has_no_layer_above_it_and_takes_every_prompt_whole() -> None:
    engine = plans()["in-flight"].engine
    assert not engine.kv_cache.reuse and not engine.chunked_prefill and engine.speculation.method == "none"
    assert engine.max_num_tokens - engine.max_batch_size + 1 >= LONGEST_PROMPT
    assert CHUNK_TOKENS < LONGEST_PROMPT


def test_what_stands_on_quantized_weights_has_the_plans_own_format() -> None:
    int4 = PLAN.model_copy(update={"quantization": PLAN.quantization.model_copy(update={"format": "int4_awq"})})
    for plan, name, quant in ((PLAN, "int8", "int8"), (int4, "int4", "int4_awq")):
        assert {rung.over for rung in rungs_of(plan) if rung.name in ("speculation", "apart")} == {name}
        assert {plans(plan)[rung].quantization.format for rung in ("speculation", "apart", "lora")} == {quant}


def test_the_plans_own_way_of_guessing_is_measured_else_n_grams() -> None:
    assert plans()["speculation"].engine.speculation.method == "ngram"
    own = parse_plan(SAMPLE_PLAN + "  speculation: {method: draft, checkpoint: there, max_draft_len: 3}\n")
    assert plans(own)["speculation"].engine.speculation == own.engine.speculation
    assert plans(own)["int8"].engine.speculation.method == "none"


def test_rungs_are_chosen_by_name_in_their_order_and_others_are_refused() -> None:
    rungs = rungs_of(PLAN)
    assert [rung.name for rung in chosen(rungs, "int8, plain")] == ["plain", "int8"]
    with pytest.raises(InputError, match=r"no rung 'fp8'.*Rungs: plain, kv-cache"):
        chosen(rungs, "plain,fp8")


def test_engines_for_gpus_and_too_short_ones_are_refused_by_name() -> None:
    gpu = parse_plan("name: m\nmodel: {checkpoint: sample}\ntarget: {gpu: h100}\nengine: {backend: pytorch}\n")
    with pytest.raises(UnsupportedError, match=r"engine.backend: pytorch.*conch bench"):
        check(gpu)
    short = PLAN.model_copy(update={"engine": PLAN.engine.model_copy(update={"max_seq_len": 128})})
    with pytest.raises(InputError, match=r"engine.max_seq_len: holds 128"):
        check(short)
