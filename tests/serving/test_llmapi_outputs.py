"""What the LLM API repeats, as an answer that grows and ends by Conch's own rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.backend.llmapi.loading import check_release, devices_of
from conch.backend.llmapi.outputs import Progress, Timing, usage_of
from conch.backend.llmapi.stats import engine_stats
from conch.engine.request import Output, Request, SamplingParams
from conch.engine.stats import AdapterStats, Counters
from conch_build.errors import ServiceError, SetupError


@dataclass
class Completion:
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[dict[int, Any]] = field(default_factory=list)


def progress(max_tokens: int = 10, ends: tuple[int, ...] = (2,), **sampling: Any) -> Progress:
    request = Request("r", [50, 51], max_tokens, SamplingParams(**sampling))
    return Progress(request, frozenset(ends), 0)


def whole(answer: Progress, *steps: Completion) -> tuple[list[int], str | None]:
    tokens: list[int] = []
    for step in steps:
        tokens += answer.take(step).tokens
    return tokens, answer.finish_reason


def test_only_what_is_new_is_taken() -> None:
    answer = progress()
    assert answer.take(Completion([5])).tokens == (5,)
    assert answer.take(Completion([5, 6, 7])).tokens == (6, 7)
    assert answer.take(Completion([5, 6, 7])).tokens == ()
    assert answer.produced == 3


def test_an_end_id_ends_the_answer_and_is_no_part_of_it() -> None:
    assert whole(progress(), Completion([5, 2], "stop")) == ([5], "stop")
    assert whole(progress(ends=(2, 9)), Completion([5, 9], "stop")) == ([5], "stop")


def test_an_end_that_the_llm_api_has_already_left_out_is_an_end_too() -> None:
    assert whole(progress(), Completion([5, 6], "stop")) == ([5, 6], "stop")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("length", "length"), ("timeout", "deadline"), ("cancelled", "cancelled")],
)
def test_reasons_have_the_engines_names(reason: str, expected: str) -> None:
    assert whole(progress(), Completion([5], reason)) == ([5], expected)


def test_a_stop_word_ends_the_answer_in_the_middle_of_a_step_and_is_part_of_it() -> None:
    answer = progress(stop_words=((6, 7),))
    assert whole(answer, Completion([5, 6]), Completion([5, 6, 7, 8, 9])) == ([5, 6, 7], "stop")


def test_a_stop_word_does_not_begin_in_the_prompt() -> None:
    assert whole(progress(stop_words=((51, 5),)), Completion([5, 6])) == ([5, 6], None)


def test_a_stop_word_before_the_least_length_does_not_count() -> None:
    answer = progress(stop_words=((5,),), min_tokens=3)
    assert whole(answer, Completion([5, 6]), Completion([5, 6, 7, 5])) == ([5, 6, 7, 5], "stop")


def test_no_answer_is_longer_than_asked_however_many_tokens_come_at_once() -> None:
    assert whole(progress(max_tokens=2), Completion([5, 6, 7, 8])) == ([5, 6], "length")


@given(st.lists(st.integers(3, 9), max_size=12), st.lists(st.integers(0, 12), max_size=6))
def test_the_answer_does_not_depend_on_how_it_was_cut_into_steps(tokens: list[int], cuts: list[int]) -> None:
    parts = [tokens[:cut] for cut in sorted(cuts)] + [tokens]
    cut = whole(progress(max_tokens=9, stop_words=((7, 8), (3,))), *(Completion(part) for part in parts))
    assert cut == whole(progress(max_tokens=9, stop_words=((7, 8), (3,))), Completion(tokens))


def place(*pairs: tuple[int, float]) -> dict[int, Any]:
    return {token: SimpleNamespace(logprob=value) for token, value in pairs}


def test_log_probabilities_belong_to_their_tokens_and_the_best_come_first() -> None:
    answer = progress(log_probs=True, top_log_probs=2)
    steps = [place((5, -0.5), (6, -1.5)), place((9, -0.1), (7, -3.0), (8, -0.4))]
    first = answer.take(Completion([5], logprobs=steps[:1]))
    second = answer.take(Completion([5, 7], logprobs=steps))
    assert (first.log_probs, first.top) == ((-0.5,), (((5, -0.5), (6, -1.5)),))
    assert (second.log_probs, second.top) == ((-3.0,), (((9, -0.1), (8, -0.4)),))


def test_those_behind_the_end_are_dropped() -> None:
    answer = progress(log_probs=True, stop_words=((5,),))
    output = answer.take(Completion([5, 6], logprobs=[place((5, -0.5)), place((6, -0.6))]))
    assert output.log_probs == (-0.5,)
    assert output.top is None


def test_nothing_is_made_up_where_the_chosen_token_has_no_log_probability() -> None:
    with pytest.raises(ServiceError, match="chosen token 5"):
        progress(log_probs=True).take(Completion([5], logprobs=[place((6, -0.5))]))


def test_usage_is_upstreams_where_it_measures_and_this_sides_where_it_does_not() -> None:
    request = Request("r", [1, 2, 3], 5)
    timing = Timing(arrival_ns=10, first_token_ns=20, last_token_ns=30)
    bare = usage_of(request, 4, timing, SimpleNamespace(outputs=[SimpleNamespace()]))
    assert (bare.prompt_tokens, bare.completion_tokens, bare.cached_tokens) == (3, 4, 0)
    assert (bare.arrival_ns, bare.first_scheduled_ns, bare.first_token_ns, bare.last_token_ns) == (10, 0, 20, 30)
    metrics = SimpleNamespace(
        kv_cache_metrics=SimpleNamespace(num_new_allocated_blocks=5, num_reused_blocks=7),
        timing_metrics=SimpleNamespace(first_token_time=timedelta(microseconds=44)),
        speculative_decoding=SimpleNamespace(total_draft_tokens=9, total_accepted_draft_tokens=6),
    )
    result = SimpleNamespace(cached_tokens=2, outputs=[SimpleNamespace(request_perf_metrics=metrics)])
    full = usage_of(request, 4, timing, result)
    assert (full.new_blocks, full.reused_blocks, full.draft_tokens, full.accepted_tokens) == (5, 7, 9, 6)
    assert (full.first_token_ns, full.last_token_ns, full.cached_tokens) == (44_000, 30, 2)
    assert usage_of(request, 0, timing, None).completion_tokens == 0


def stats(live: int, step: dict[str, Any]) -> Any:
    return engine_stats(
        live,
        Counters(),
        step,
        max_batch_size=8,
        tokens_per_block=32,
        prefix_hit_tokens=0,
        speculating=False,
        adapters=AdapterStats(),
        last_step=1.0,
    )


def test_statistics_of_a_step_become_the_engines() -> None:
    step = {
        "numQueuedRequests": 2,
        "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 40, "tokensPerBlock": 64},
        "inflightBatchingStats": {"numContextRequests": 1, "numPausedRequests": 1},
    }
    now = stats(5, step)
    assert (now.running, now.waiting, now.prefilling) == (2, 3, 1)
    assert (now.kv_blocks_total, now.kv_blocks_used, now.tokens_per_block) == (100, 40, 64)


def test_an_old_record_never_claims_more_than_there_is() -> None:
    now = stats(1, {"numQueuedRequests": 7, "inflightBatchingStats": {"numContextRequests": 7}})
    assert (now.running, now.waiting, now.prefilling) == (0, 1, 0)
    assert stats(0, {}).tokens_per_block == 32


def test_every_instance_gets_the_gpus_of_its_number() -> None:
    assert devices_of("", "tensorrt_llm_0_0") is None
    assert devices_of("0,1;2,3", "tensorrt_llm_0_1") == "2,3"
    with pytest.raises(SetupError, match="instance 2"):
        devices_of("0,1;2,3", "tensorrt_llm_0_2")


def test_an_engine_is_served_by_its_own_release_line() -> None:
    check_release("1.2.1", "1.2.0")
    with pytest.raises(SetupError, match=r"built for TensorRT-LLM 1\.2\.1"):
        check_release("1.2.1", "1.3.0rc21")


def test_outputs_know_their_answer() -> None:
    request = Request("r", [1], 5, n=3)
    assert Progress(request, frozenset(), 2).take(Completion([5])) == Output("r", (5,), index=2)
