"""`tensorrt_llm_bls` behind a running Triton: the ensemble's text, however it is asked for, and nothing left behind."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from conch.triton import TritonServer
from tests.contract.triton_calls import Reply, ask, metric, stream, wait_until_idle

pytestmark = pytest.mark.usefixtures("idle_afterwards")

BLS = "tensorrt_llm_bls"
PROMPT = "Write about the 🦄 in 日本:"


def text(prompt: str = PROMPT, count: int = 16, **more: Any) -> dict[str, Any]:
    return {"text_input": prompt, "max_tokens": count, **more}


def whole(reply: Reply) -> str:
    assert reply.error is None
    return "".join(reply.texts)


CASES: list[dict[str, Any]] = [
    {},
    {"exclude_input_in_output": True},
    {"end_id": -1, "min_tokens": 3},
    {"top_p": 0.9, "temperature": 0.8, "seed": 5},
    {"repetition_penalty": 1.3, "top_k": 4, "seed": 1},
    {"bad_words": ["unicorn", " the"]},
    {"embedding_bias_words": [" magic"], "embedding_bias_weights": [12.0]},
    {"guided_decoding_guide_type": "choice", "guided_decoding_guide": '["yes", "no"]'},
]


@pytest.mark.parametrize("more", CASES, ids=lambda more: next(iter(more), "plain"))
def test_its_text_is_the_ensembles_streamed_and_whole(url: str, more: dict[str, Any]) -> None:
    asked = text(exclude_input_in_output=True) | more
    answers = {whole(ask(url, model, asked | {"stream": on})) for model in ("ensemble", BLS) for on in (True, False)}
    assert len(answers) == 1
    with_prompt = text() | more | {"exclude_input_in_output": False}
    assert whole(ask(url, BLS, with_prompt)) == whole(ask(url, "ensemble", with_prompt))


def test_a_stream_comes_token_by_token_and_says_its_reason_last(url: str) -> None:
    reply = ask(url, BLS, text(stream=True, end_id=-1))
    assert len(reply.responses) == 16
    assert reply.finish_reason == "length"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in reply.texts[:-1])


def test_stop_words_end_the_text_where_the_ensemble_ends_it(url: str) -> None:
    for on in (True, False):
        asked = text("1, 2, 3,", exclude_input_in_output=True, stop_words=["6"], stream=on)
        assert whole(ask(url, BLS, asked)) == whole(ask(url, "ensemble", asked)) == " 4, 5, 6"


def test_scores_counts_and_metrics_are_those_of_the_engine(url: str) -> None:
    more = {"return_log_probs": True, "return_perf_metrics": True, "exclude_input_in_output": True}
    ours, theirs = (ask(url, model, text(**more)) for model in (BLS, "ensemble"))
    for name in ("output_log_probs", "cum_log_probs", "total_draft_tokens", "conch_finish_reason"):
        np.testing.assert_array_equal(ours.array(name), theirs.array(name))
    assert (arrived := ours.array("arrival_time_ns")) is not None and arrived.item() > 0


def test_several_answers_come_as_several_streams(url: str) -> None:
    asked = text(num_return_sequences=3, top_p=1.0, seed=4, stream=True)
    answers: dict[str, list[str]] = {}
    for model in ("ensemble", BLS):
        pieces = ["", "", ""]
        for response in ask(url, model, asked).responses:
            pieces[response.as_numpy("sequence_index").item()] += response.as_numpy("text_output").item().decode()
        answers[model] = pieces
    assert answers[BLS] == answers["ensemble"]
    assert len(set(answers[BLS])) == 3


def test_only_the_outputs_asked_for_are_sent(url: str) -> None:
    reply = ask(url, BLS, text(count=2), outputs=["text_output"])
    assert [output.name for output in reply.responses[0].get_response().outputs] == ["text_output"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"beam_width": 3}, "`beam_width`"),
        ({"num_draft_tokens": np.array([4], np.int32)}, "no draft model is served"),
        ({"image_url_input": np.array([b"http://x"], np.object_)}, "`image_url_input`: this model takes text prompts"),
        ({"lora_task_id": 7}, "no adapter has the id 7"),
        ({"max_tokens": 0}, "max_tokens"),
        (
            {"text_input": np.array([[b"one"], [b"two"]], np.object_), "max_tokens": np.array([[4], [4]])},
            "`text_input` needs one value, not 2",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(url: str, more: dict[str, Any], message: str) -> None:
    reply = ask(url, BLS, text() | more)
    assert reply.error is not None and message in reply.error


@pytest.mark.parametrize("streaming", [True, False])
def test_a_caller_that_leaves_ends_the_generation_inside(url: str, stack_triton: TritonServer, streaming: bool) -> None:
    label = 'finish_reason="cancelled"'
    before = metric(stack_triton.metrics_url, "conch_engine_requests_total", label)
    with stream(url, BLS, text(count=1500, stream=streaming, end_id=-1)) as opened:
        if streaming:
            opened.next()
        else:
            with pytest.raises(queue.Empty):
                opened.next(seconds=1)
    wait_until_idle(stack_triton.metrics_url)
    assert metric(stack_triton.metrics_url, "conch_engine_requests_total", label) == before + 1


def test_more_requests_than_it_answers_at_once_are_all_answered_alike(url: str) -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda number: whole(ask(url, BLS, text(count=6, stream=number % 2))), range(40)))
    assert len(set(answers[1::2])) == len(set(answers[::2])) == 1
    assert answers[0] == PROMPT + answers[1]
