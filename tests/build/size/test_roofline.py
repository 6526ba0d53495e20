"""The limits by bandwidth and arithmetic: published examples, and what must hold for any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch_build.gpu.cards import GPUS
from conch_build.gpu.storage import STORAGE
from conch_build.size.roofline import (
    Machine,
    active_parameters,
    limits,
    machine_of,
    prefill_flops,
    read_weight_bytes,
    touched_experts,
)
from tests.build.configs import described

LLAMA = described("llama-3-8b")
MIXTRAL = described("mixtral-8x7b")
LLAMA_2_7B = replace(LLAMA, num_kv_heads=32, intermediate_size=11008, vocab_size=32000)
A10 = machine_of(GPUS["a10"], "none")


def test_a_7b_model_on_an_a10_as_published() -> None:
    """https://www.baseten.co/blog/llm-transformer-inference-guide: 14 GB / 600 GB/s = 23 ms a token; 350 tokens x 14
    GFLOP / 125 TFLOP/s = 39 ms a prompt (with 7 for 6.7 billion weights, and without attention)."""
    found = limits(LLAMA_2_7B, STORAGE["none"], A10, 524_288, prompt=350, context=1, batch=1)
    assert found.step_seconds == pytest.approx(0.023, rel=0.06)
    assert found.prefill_seconds == pytest.approx(0.039, rel=0.08)
    assert (found.step_bound, found.prefill_bound) == ("bandwidth", "arithmetic")


def test_mixtral_uses_13_of_its_47_billion_weights() -> None:
    """https://arxiv.org/abs/2401.04088, section 2."""
    assert active_parameters(MIXTRAL) == pytest.approx(12.9e9, rel=0.02)
    assert MIXTRAL.parameters == pytest.approx(46.7e9, rel=0.01)


def test_a_dense_model_uses_all_but_its_table_of_embeddings() -> None:
    norms = (2 * LLAMA.num_layers + 1) * LLAMA.hidden_size
    assert active_parameters(LLAMA) == LLAMA.parameters - LLAMA.embedding_parameters - norms


@given(batch=st.integers(1, 2000))
def test_a_batch_touches_some_experts_and_at_most_all(batch: int) -> None:
    assert touched_experts(8, 2, batch) + 1e-9 >= 2 and touched_experts(8, 2, batch) <= 8
    assert read_weight_bytes(MIXTRAL, STORAGE["none"], batch) <= 2 * MIXTRAL.parameters


@given(tokens=st.integers(1, 100_000))
def test_a_prompt_takes_at_least_two_operations_a_weight(tokens: int) -> None:
    body = active_parameters(LLAMA) - LLAMA.embedding_parameters
    assert prefill_flops(LLAMA, tokens) >= 2 * tokens * body
    assert prefill_flops(LLAMA, 2 * tokens) >= 2 * prefill_flops(LLAMA, tokens) - 2 * LLAMA.embedding_parameters


@given(batch=st.integers(1, 512), context=st.integers(1, 8192), gpus=st.sampled_from([1, 2, 4, 8]))
def test_larger_batches_give_more_tokens_in_slower_steps(batch: int, context: int, gpus: int) -> None:
    machine = Machine(A10.bandwidth_bytes_s, A10.flops, gpus)
    small, large = (
        limits(LLAMA, STORAGE["none"], machine, 131_072, prompt=10, context=context, batch=size)
        for size in (batch, 2 * batch)
    )
    assert large.step_seconds >= small.step_seconds
    assert large.decode_tokens_s >= small.decode_tokens_s * (1 - 1e-9)


@given(batch=st.sampled_from([4, 8, 64]), gpus=st.sampled_from([2, 4]))
def test_tensor_parallelism_shortens_a_step_and_a_pipeline_does_not_for_one_request(batch: int, gpus: int) -> None:
    def seconds(count: int, stages: int, size: int) -> float:
        machine = Machine(A10.bandwidth_bytes_s, A10.flops, count, stages)
        return limits(LLAMA, STORAGE["none"], machine, 131_072, prompt=10, context=100, batch=size).step_seconds

    assert seconds(gpus, 1, batch) == pytest.approx(seconds(1, 1, batch) / gpus)
    assert seconds(gpus, gpus, 1) == pytest.approx(seconds(1, 1, 1))


def test_windows_bound_what_a_step_reads() -> None:
    windowed = replace(LLAMA, windows=(128,) * 32)
    short, long = (
        limits(windowed, STORAGE["none"], A10, 131_072, prompt=10, context=context, batch=64).step_seconds
        for context in (128, 8192)
    )
    assert short == long
