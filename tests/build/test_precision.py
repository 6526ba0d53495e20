"""What a plan's `auto` means for numbers on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype
from conch_build.errors import PlanError
from conch_build.plan import Plan
from tests.build.models import LLAMA_8B


def plan_of(**changes: Any) -> Plan:
    return Plan.model_validate({"name": "m", "model": {"checkpoint": "/m"}, **changes})


@pytest.mark.parametrize(
    ("stored", "precision", "dtype"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("float32", "auto", "float16"),
        ("bfloat16", "fp16", "float16"),
        ("float16", "bf16", "bfloat16"),
    ],
)
def test_activations_follow_the_plan_and_then_the_checkpoint(stored: str, precision: str, dtype: str) -> None:
    plan = plan_of(engine={"precision": precision})
    assert gpu_dtype(plan, replace(LLAMA_8B, dtype=stored)) == dtype


@pytest.mark.parametrize(
    ("form", "asked", "cache"),
    [
        ("none", "auto", "bfloat16"),
        ("int4_awq", "auto", "bfloat16"),
        ("fp8", "auto", "fp8"),
        ("nvfp4", "auto", "fp8"),
        ("none", "fp8", "fp8"),
        ("int8_sq", "int8", "int8"),
        ("none", "bf16", "bfloat16"),
    ],
)
def test_the_cache_is_fp8_beside_fp8_and_nvfp4_weights_else_as_the_activations(
    form: str, asked: str, cache: str
) -> None:
    assert gpu_kv_dtype(plan_of(quantization={"format": form, "kv_cache": asked}), LLAMA_8B) == cache


@pytest.mark.parametrize("stored", [{"kv_cache_quant_algo": "FP8"}, {"kv_cache_scheme": {"num_bits": 8}}])
def test_a_checkpoint_that_brings_scales_of_its_cache_gets_such_a_cache(stored: dict[str, Any]) -> None:
    assert gpu_kv_dtype(plan_of(), replace(LLAMA_8B, quantization=stored)) == "fp8"


@pytest.mark.parametrize("asked", ["fp16", "u8", "f32"])
def test_a_cache_of_another_type_than_the_activations_is_refused(asked: str) -> None:
    with pytest.raises(PlanError, match="does not go with activations in bfloat16"):
        gpu_kv_dtype(plan_of(quantization={"kv_cache": asked}), LLAMA_8B)
