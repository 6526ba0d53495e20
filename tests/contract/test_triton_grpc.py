"""The Triton contract over gRPC, spoken by tritonclient to the sample model on the real engine."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from conch.triton import TritonServer
from tests.contract.triton_calls import ask, stream, tokens, wait_until_idle

pytestmark = pytest.mark.usefixtures("idle_afterwards")

PROMPT = [1, 9690, 198, 2683]  # "<|im_start|>system\nYou"
TEXT = "1, 2, 3, 4, 5,"
ENDLESS = {"end_id": -1}


def test_a_stream_brings_a_token_a_response_and_the_last_one_is_final(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 8, streaming=True, **ENDLESS))
    assert [response.as_numpy("output_ids").shape for response in reply.responses] == [(1, 1, 1)] * 8
    reasons = [response.as_numpy("conch_finish_reason").ravel()[0] for response in reply.responses]
    assert reasons == [b""] * 7 + [b"length"]


def test_without_streaming_one_response_holds_the_same_ids(url: str) -> None:
    streamed = ask(url, "tensorrt_llm", tokens(PROMPT, 12, streaming=True, **ENDLESS))
    whole = ask(url, "tensorrt_llm", tokens(PROMPT, 12, **ENDLESS))
    assert len(whole.responses) == 1
    assert whole.ids == PROMPT + streamed.ids
    without = ask(url, "tensorrt_llm", tokens(PROMPT, 12, exclude_input_in_output=True, **ENDLESS))
    assert without.ids == streamed.ids


def test_each_response_carries_the_ids_before_it(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 40, streaming=True, **ENDLESS))
    for index, response in enumerate(reply.responses):
        assert response.as_numpy("conch_previous_ids").ravel().tolist() == reply.ids[max(0, index - 32) : index]


def test_only_requested_outputs_are_sent(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 2, streaming=True), outputs=["output_ids"])
    assert [output.name for output in reply.responses[0].get_response().outputs] == ["output_ids"]


def test_log_probs_and_their_candidates(url: str) -> None:
    inputs = tokens(PROMPT, 3, streaming=True, return_log_probs=True, conch_top_log_probs=5, **ENDLESS)
    reply = ask(url, "tensorrt_llm", inputs)
    for index, token in enumerate(reply.ids):
        top, chosen = reply.array("conch_top_log_probs", index), reply.array("output_log_probs", index)
        ids = reply.array("conch_top_ids", index)
        assert top is not None and chosen is not None and ids is not None
        assert ids.shape == top.shape == (1, 1, 5)
        assert ids[0, 0, 0] == token
        assert top[0, 0, 0] == pytest.approx(chosen.item())
        assert np.all(np.diff(top[0, 0]) <= 0)


@pytest.mark.parametrize("streaming", [False, True])
def test_several_answers_come_by_their_index(url: str, streaming: bool) -> None:
    sampled = {"runtime_top_p": 0.95, "temperature": 1.0, "seed": 5, "exclude_input_in_output": True, **ENDLESS}
    alone = ask(url, "tensorrt_llm", tokens(PROMPT, 9, **sampled)).ids
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 9, num_return_sequences=3, streaming=streaming, **sampled))
    answers: dict[int, list[int]] = {}
    for number, response in enumerate(reply.responses):
        index = reply.array("sequence_index", number)
        assert index is not None
        answers.setdefault(index.item(), []).extend(response.as_numpy("output_ids").ravel().tolist())
    assert sorted(answers) == [0, 1, 2] and {len(ids) for ids in answers.values()} == {9}
    assert answers[0] == alone and len({tuple(ids) for ids in answers.values()}) > 1
    assert len(reply.responses) == (27 if streaming else 3)


def test_log_probs_of_the_prompt_agree_with_those_of_an_answer(url: str) -> None:
    """What was generated is scored alike when it comes back as a prompt."""
    inputs = tokens(PROMPT, 6, return_log_probs=True, exclude_input_in_output=True, **ENDLESS)
    answer = ask(url, "tensorrt_llm", inputs)
    scores = answer.array("output_log_probs")
    again = tokens([*PROMPT, *answer.ids], 1, conch_return_prompt_log_probs=True, conch_top_log_probs=2, **ENDLESS)
    reply = ask(url, "tensorrt_llm", again)
    prompt, top = reply.array("conch_prompt_log_probs"), reply.array("conch_prompt_top_ids")
    assert prompt is not None and scores is not None and top is not None
    assert prompt.shape == (1, len(PROMPT) + 5) and top.shape == (1, len(PROMPT) + 5, 2)
    assert prompt[0, -6:] == pytest.approx(scores.ravel(), abs=0.5)  # rounded otherwise
    agreeing = sum(token == best for token, best in zip(answer.ids, top[0, -6:, 0].tolist(), strict=True))
    assert agreeing >= 5


def test_a_seed_repeats_a_sampled_answer(url: str) -> None:
    inputs = tokens(PROMPT, 16, runtime_top_p=1.0, temperature=1.0, exclude_input_in_output=True, **ENDLESS)
    first, again, other = (ask(url, "tensorrt_llm", {**inputs, "seed": seed}).ids for seed in (7, 7, 8))
    assert first == again != other


def test_a_cancelled_stream_gives_its_blocks_back_within_a_moment(url: str, stack_triton: TritonServer) -> None:
    with stream(url, "tensorrt_llm", tokens(PROMPT, 1000, streaming=True, **ENDLESS)) as opened:
        opened.next()
    started = time.monotonic()
    wait_until_idle(stack_triton.metrics_url)
    assert time.monotonic() - started < 2


def test_a_stop_request_ends_the_request_of_its_id(url: str) -> None:
    inputs = tokens(PROMPT, 1000, streaming=True, **ENDLESS)
    with stream(url, "tensorrt_llm", inputs, request_id="mine") as opened:
        opened.next()
        ask(url, "tensorrt_llm", tokens([0], 1, stop=True), request_id="other")
        opened.next()
        ask(url, "tensorrt_llm", tokens([0], 1, stop=True), request_id="mine")
        reply = opened.read()
    assert reply.finish_reason == "cancelled"
    assert len(reply.ids) < 900


def test_a_stop_request_for_nobody_answers_at_once(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens([0], 1, stop=True), request_id="nobody")
    assert (reply.error, reply.ids) == (None, [])


def test_a_deadline_ends_an_answer(url: str) -> None:
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 1000, streaming=True, conch_timeout_ms=300, **ENDLESS))
    assert reply.finish_reason == "deadline"


def test_end_ids_are_not_part_of_the_answer(url: str) -> None:
    free = ask(url, "tensorrt_llm", tokens(PROMPT, 8, streaming=True, **ENDLESS)).ids
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 8, streaming=True, conch_end_ids=[free[3]]))
    assert reply.ids == free[: free.index(free[3])]
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"beam_width": 4},
            "[UnsupportedError param=beam_width] `beam_width`: this backend has no beam search",
        ),
        ({"lora_task_id": 3}, "[NotFoundError param=lora_task_id code=model_not_found]"),
        ({"return_context_logits": True}, "[UnsupportedError param=return_context_logits]"),
        ({"guided_decoding_guide_type": "poem"}, "[UnsupportedError param=guided_decoding_guide_type]"),
        ({"num_return_sequences": 1000}, "[RequestError param=n code=invalid_value]"),
        ({"request_output_len": 100_000}, "[RequestError param=max_tokens code=context_length_exceeded]"),
        ({"input_ids": [1, 9_999_999, 3, 4]}, "[RequestError param=prompt code=invalid_value]"),
        ({"input_lengths": 9}, "[RequestError param=input_lengths]"),
        ({"temperature": -1.0, "runtime_top_p": 1.0}, "[RequestError param=temperature code=invalid_value]"),
        ({"temperature": float("nan")}, "[RequestError param=temperature code=invalid_value]"),
        ({"nonsense": np.array([[1.0]], np.float32)}, "nonsense"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused_by_name(url: str, more: dict[str, Any], message: str) -> None:
    reply = ask(url, "tensorrt_llm", {**tokens(PROMPT, 4), **more})
    assert reply.error is not None
    assert message in reply.error
    assert reply.responses == []


def test_a_wish_for_countless_answers_is_refused_at_once(url: str) -> None:
    started = time.monotonic()
    reply = ask(url, "tensorrt_llm", tokens(PROMPT, 4, num_return_sequences=4_000_000))
    assert reply.error is not None and "param=n code=invalid_value" in reply.error
    assert time.monotonic() - started < 2, "nothing was made for each of them"


def test_a_batch_of_prompts_is_refused(url: str) -> None:
    two = np.array([[1, 2], [3, 4]], np.int32)
    lengths = np.array([[2], [2]], np.int32)
    reply = ask(url, "tensorrt_llm", {"input_ids": two, "input_lengths": lengths, "request_output_len": lengths})
    assert reply.error is not None
    assert "batch of 2" in reply.error


def test_streamed_text_joins_to_the_whole_text(url: str) -> None:
    inputs = {"text_input": TEXT, "max_tokens": 24, "end_id": -1, "exclude_input_in_output": True}
    whole = ask(url, "ensemble", inputs)
    streamed = ask(url, "ensemble", {**inputs, "stream": True})
    assert len(streamed.responses) == 24
    assert "".join(streamed.texts) == whole.texts[0]
    assert streamed.texts[0].startswith(" ")


def test_the_whole_text_has_the_prompt_in_front_as_upstream_has_it(url: str) -> None:
    inputs = {"text_input": TEXT, "max_tokens": 4, "end_id": -1}
    answer = ask(url, "ensemble", {**inputs, "exclude_input_in_output": True}).texts[0]
    assert ask(url, "ensemble", inputs).texts[0] == TEXT + answer


def test_half_characters_without_end_stream_as_the_whole_text_has_them(url: str) -> None:
    half_emoji = {"conch_logit_bias_ids": [10813], "conch_logit_bias_values": [100.0]}
    inputs = {
        "text_input": "a",
        "max_tokens": 40,
        "end_id": -1,
        "exclude_input_in_output": True,
        **half_emoji,
    }
    whole = ask(url, "ensemble", inputs)
    streamed = ask(url, "ensemble", {**inputs, "stream": True})
    assert "".join(streamed.texts) == whole.texts[0] != ""
    assert streamed.finish_reason == "length"


@pytest.mark.parametrize("word", [" 8", "8", ", 9", "8,"])
def test_a_stop_word_ends_the_text_where_it_first_occurs(url: str, word: str) -> None:
    inputs = {"text_input": TEXT, "max_tokens": 24, "end_id": -1, "exclude_input_in_output": True}
    free = ask(url, "ensemble", inputs).texts[0]
    assert word in free
    reply = ask(url, "ensemble", {**inputs, "stop_words": ["never, said", word]})
    assert reply.finish_reason == "stop"
    assert reply.texts[0] == free[: free.index(word) + len(word)]


def test_a_bad_word_does_not_occur(url: str) -> None:
    inputs = {"text_input": TEXT, "max_tokens": 12, "end_id": -1, "exclude_input_in_output": True}
    assert "8" in ask(url, "ensemble", inputs).texts[0]
    assert "8" not in ask(url, "ensemble", {**inputs, "bad_words": ["8"]}).texts[0]


def test_a_biased_word_is_preferred(url: str) -> None:
    inputs = {"text_input": TEXT, "max_tokens": 4, "end_id": -1, "exclude_input_in_output": True}
    bias = {"embedding_bias_words": ["banana"], "embedding_bias_weights": [100.0]}
    assert "anana" in ask(url, "ensemble", {**inputs, **bias}).texts[0]


def test_streams_side_by_side_do_not_mix(url: str) -> None:
    prompts = ["1, 2, 3,", "The capital of France is", "Once upon a time", "def add(a, b):"]
    inputs = [{"text_input": prompt, "max_tokens": 16, "end_id": -1, "stream": True} for prompt in prompts]
    alone = ["".join(ask(url, "ensemble", one).texts) for one in inputs]
    together: dict[int, str] = {}

    def run(index: int) -> None:
        together[index] = "".join(ask(url, "ensemble", inputs[index]).texts)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(inputs))] == alone
