"""Tensors in and out of the `tensorrt_llm` model: each input is honoured or refused by its name."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.backend.adapters import decode_command
from conch.backend.arrays import tagged
from conch.backend.feeds import feed_of
from conch.backend.responses import Answer, Response
from conch.backend.tensors import Call, decode_call, is_stop
from conch.backend.words import decode_words, encode_words
from conch.engine import Output, PromptLogProbs, Usage
from conch.engine.guide import Guide
from conch_build.errors import RequestError, ServiceError, UnsupportedError


def tensors(**values: Any) -> dict[str, np.ndarray]:
    """A well-formed request, changed by `values`; None takes a tensor out."""
    plain: dict[str, Any] = {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[4]], np.int32),
    }
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind in "if" and not isinstance(value, np.ndarray):
            array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
        plain[name] = array.reshape(1, -1) if array.ndim < 2 else array
        if value is None:
            del plain[name]
    return plain


def call(**values: Any) -> Call:
    return decode_call(tensors(**values), request_id="r")


def test_a_plain_request_takes_the_best_token_and_the_models_own_end() -> None:
    request = call().request
    assert (list(request.prompt), request.max_tokens) == ([5, 6, 7], 4)
    assert request.sampling.greedy
    assert request.sampling.end_ids is None
    assert request.deadline is None


def test_top_p_one_samples_from_everything() -> None:
    sampling = call(temperature=0.7, runtime_top_p=1.0).request.sampling
    assert sampling.temperature == pytest.approx(0.7)
    assert (sampling.top_k, sampling.top_p) == (0, 1.0)


def test_top_k_alone_leaves_top_p_open() -> None:
    sampling = call(runtime_top_k=40).request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 40, 1.0)


def test_every_sampling_tensor_arrives() -> None:
    sampling = call(
        runtime_top_k=3,
        runtime_top_p=0.5,
        conch_min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        seed=np.array([[2**63 + 1]], np.uint64),
        min_tokens=2,
        conch_logit_bias_ids=[1, 2],
        conch_logit_bias_values=[0.5, -100.0],
        conch_top_log_probs=5,
    ).request.sampling
    assert sampling.seed == 2**63 + 1
    assert sampling.logit_bias == {1: 0.5, 2: -100.0}
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (3, 0.5, 0.25)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        1.5,
        0.5,
        -0.5,
    )
    assert (sampling.min_tokens, sampling.top_log_probs, sampling.log_probs) == (2, 5, True)


@pytest.mark.parametrize(
    ("given", "end_ids"),
    [
        ({"end_id": 2}, {2}),
        ({"end_id": -1}, set()),
        ({"conch_end_ids": [2, 3], "end_id": 9}, {2, 3}),
        ({"conch_end_ids": [-1]}, set()),
    ],
)
def test_end_ids(given: dict[str, Any], end_ids: set[int]) -> None:
    assert call(**given).request.sampling.end_ids == end_ids


def test_a_timeout_becomes_a_deadline() -> None:
    deadline = call(conch_timeout_ms=1500).request.deadline
    assert deadline is not None
    assert deadline - time.monotonic() == pytest.approx(1.5, abs=0.2)


def test_padding_after_the_given_length_is_ignored() -> None:
    assert list(call(input_lengths=2).request.prompt) == [5, 6]


def test_word_lists_survive_the_round_trip() -> None:
    words = ((1, 2), (3,), (4, 5, 6))
    assert decode_words(encode_words(words)[None], "stop_words_list") == words
    assert decode_words(encode_words([])[None], "stop_words_list") == ()
    request = call(stop_words_list=encode_words(words)[None], bad_words_list=encode_words([(7,)])[None]).request
    assert request.sampling.stop_words == words
    assert request.sampling.bad_words == ((7,),)


@pytest.mark.parametrize("ends", [[2, 1, -1], [4, -1, -1], [0, 3, -1]])
def test_a_word_list_whose_ends_do_not_grow_is_refused(ends: list[int]) -> None:
    with pytest.raises(RequestError, match="stop_words_list"):
        call(stop_words_list=np.array([[[1, 2, 3], ends]], np.int32))


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("beam_width", 2, 1),
        ("len_penalty", 2.0, 1.0),
        ("early_stopping", True, False),
        ("runtime_top_p_decay", 0.5, 1.0),
        ("runtime_top_p_min", 0.5, 1e-6),
        ("return_context_logits", True, False),
        ("return_generation_logits", True, False),
        ("lora_weights", np.ones((1, 2, 2), np.float16), np.empty((1, 0, 0), np.float16)),
        ("lora_config", np.ones((1, 1, 3), np.int32), np.empty((1, 0, 3), np.int32)),
        ("draft_logits", np.ones((1, 1, 2), np.float32), np.empty((1, 0, 2), np.float32)),
        ("prompt_embedding_table", np.ones((1, 2, 2), np.float16), np.empty((1, 0, 0), np.float16)),
        ("retention_decode_priority", 50, None),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_unless_it_asks_for_nothing(
    name: str, value: Any, neutral: Any
) -> None:
    with pytest.raises(UnsupportedError, match=f"`{name}`") as caught:
        call(**{name: value})
    assert caught.value.param == name
    call(**{name: neutral})


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_lengths": 9}, "input_lengths"),
        ({"input_lengths": 0}, "input_lengths"),
        ({"input_ids": np.ones((2, 3), np.int32)}, "input_ids"),
        ({"temperature": [0.5, 0.6]}, "temperature"),
        ({"conch_logit_bias_ids": [1]}, "conch_logit_bias_values"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(values: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call(**values)
    assert caught.value.param == param


class Watched(dict[str, np.ndarray]):
    """Remembers which tensors were looked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def test_every_declared_input_is_looked_at() -> None:
    watched = Watched(tensors())
    is_stop(watched)
    decode_command(watched, {})
    feed_of(watched)
    decode_call(watched, request_id="r")
    config = (Path(__file__).parents[2] / "model_repo" / "tensorrt_llm" / "config.pbtxt").read_text()
    declared = set(re.findall(r'name: "(\w+)"', config[config.index("input [") : config.index("output [")]))
    assert declared - watched.asked == {"pad_id"}  # with one sequence a request there is nothing to pad


def test_an_error_carries_its_class_for_the_client() -> None:
    error = RequestError("too long", param="max_tokens", code="context_length_exceeded")
    assert tagged(error) == "[RequestError param=max_tokens code=context_length_exceeded] too long"


def test_a_stop_request_is_told_from_others() -> None:
    assert is_stop(tensors(stop=True))
    assert not is_stop(tensors(stop=False))
    assert not is_stop(tensors())


USAGE = Usage(
    prompt_tokens=3,
    cached_tokens=2,
    completion_tokens=3,
    draft_tokens=8,
    accepted_tokens=2,
    arrival_ns=1,
    first_scheduled_ns=2,
    first_token_ns=3,
    last_token_ns=4,
    new_blocks=1,
    reused_blocks=5,
)
OUTPUTS = [
    Output("r", (11,), log_probs=(-1.0,)),
    Output("r", (12, 13), log_probs=(-2.0, -3.0)),
    Output("r", (), finish_reason="stop", usage=USAGE, final=True),
]


def answers(**values: Any) -> list[Response]:
    answer = Answer(call(**values))
    return [response for output in OUTPUTS if (response := answer.add(output))]


def test_a_stream_sends_each_step_with_what_came_before() -> None:
    responses = answers(streaming=True, return_log_probs=True)
    assert [response.tensors["output_ids"].tolist() for response in responses] == [
        [[[11]]],
        [[[12, 13]]],
        [[[]]],
    ]
    previous = [response.tensors["conch_previous_ids"].tolist() for response in responses]
    assert previous == [[[]], [[11]], [[11, 12, 13]]]
    assert [response.tensors["cum_log_probs"].item() for response in responses] == [-1, -6, -6]
    assert [response.tensors["conch_finish_reason"].item() for response in responses] == ["", "", "stop"]
    assert [response.final for response in responses] == [False, False, True]


def test_an_interval_puts_tokens_of_a_stream_together_but_never_delays_the_first_or_the_last() -> None:
    answer = Answer(call(streaming=True), stream_interval=3)
    outputs = [Output("r", (token,)) for token in range(6)]
    outputs.append(Output("r", (6,), finish_reason="length", usage=USAGE, final=True))
    responses = [response for output in outputs if (response := answer.add(output))]
    assert [response.tensors["output_ids"].ravel().tolist() for response in responses] == [[0], [1, 2, 3], [4, 5, 6]]
    assert responses[2].tensors["conch_previous_ids"].ravel().tolist() == [0, 1, 2, 3]


def test_without_streaming_there_is_one_response_with_the_prompt_as_upstream_has_it() -> None:
    (response,) = answers()
    assert response.tensors["output_ids"].tolist() == [[[5, 6, 7, 11, 12, 13]]]
    assert response.tensors["sequence_length"].item() == 6
    (response,) = answers(exclude_input_in_output=True, return_log_probs=True)
    assert response.tensors["output_ids"].tolist() == [[[11, 12, 13]]]
    assert response.tensors["output_log_probs"].tolist() == [[[-1, -2, -3]]]


@pytest.mark.parametrize(
    ("guesses", "kept", "reason", "accepted"),
    [
        ([11, 12, 13], [11, 12, 13], "stop", 3),
        ([11, 12], [11, 12, 13], "stop", 2),
        ([11, 9, 13], [11, 12], "length", 1),
        ([9], [11], "length", 0),
    ],
)
def test_an_answer_ends_behind_the_first_wrong_guess_of_its_caller(
    guesses: list[int], kept: list[int], reason: str, accepted: int
) -> None:
    asked = {"draft_input_ids": guesses, "exclude_input_in_output": True}
    (response,) = answers(**asked, return_log_probs=True, return_perf_metrics=True)
    assert response.tensors["output_ids"].ravel().tolist() == kept
    assert response.tensors["output_log_probs"].ravel().tolist() == [-1, -2, -3][: len(kept)]
    assert response.tensors["conch_finish_reason"].item() == reason
    assert response.tensors["total_draft_tokens"].item() == len(guesses)
    assert response.tensors["total_accepted_draft_tokens"].item() == accepted


@pytest.mark.parametrize("more", [{"streaming": True}, {"num_return_sequences": 2}])
def test_guesses_of_a_caller_are_for_one_whole_answer(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=f"`{next(iter(more))}` does not go with `draft_input_ids`"):
        call(draft_input_ids=[1], **more)
    call(draft_input_ids=np.empty((1, 0), np.int32), **more)


def test_what_was_not_asked_for_is_not_made() -> None:
    assert set(answers()[0].tensors) == {
        "output_ids",
        "sequence_length",
        "batch_index",
        "sequence_index",
        "conch_finish_reason",
        "conch_previous_ids",
        "conch_cached_tokens",
    }


def test_counts_and_times_come_when_asked_for() -> None:
    (response,) = answers(return_perf_metrics=True, return_num_input_tokens=True, return_num_output_tokens=True)
    values = {name: array.ravel()[0] for name, array in response.tensors.items() if array.size}
    assert (values["num_input_tokens"], values["num_output_tokens"]) == (3, 3)
    assert values["kv_cache_alloc_total_blocks"] == 6
    assert (values["arrival_time_ns"], values["last_token_time_ns"]) == (1, 4)
    assert (values["total_draft_tokens"], values["total_accepted_draft_tokens"]) == (8, 2)
    assert values["acceptance_rate"] == 0.25


def test_several_answers_are_told_apart_and_only_the_last_response_is_final() -> None:
    asked = call(num_return_sequences=2)
    assert asked.request.n == 2
    ends = [
        Answer(asked, index).add(Output("r", (7,), finish_reason="length", index=index, final=index == 0))
        for index in (1, 0)
    ]
    assert [(end.tensors["sequence_index"].item(), end.final) for end in ends if end] == [(1, False), (0, True)]


def test_log_probs_of_the_prompt_come_once() -> None:
    answer = Answer(call(conch_return_prompt_log_probs=True, conch_top_log_probs=1, streaming=True))
    scores = PromptLogProbs((-1.0, -2.0), (((4, -0.5),), ((6, -0.7),)))
    first = answer.add(Output("r", (7,), (-1.0,), (((7, -1.0),),), scores))
    second = answer.add(Output("r", (8,), (-1.0,), (((8, -1.0),),)))
    assert first is not None and second is not None
    assert first.tensors["conch_prompt_log_probs"].tolist() == [[-1, -2]]
    assert first.tensors["conch_prompt_top_ids"].tolist() == [[[4], [6]]]
    assert "conch_prompt_log_probs" not in second.tensors


def test_top_log_probs_are_a_table_of_the_asked_width() -> None:
    answer = Answer(call(conch_top_log_probs=3, streaming=True))
    response = answer.add(Output("r", (11,), log_probs=(-0.1,), top=(((11, -0.1), (4, -2.0)),)))
    assert response is not None
    assert response.tensors["conch_top_ids"].tolist() == [[[11, 4, -1]]]
    assert response.tensors["conch_top_log_probs"][0, 0, 2] == -np.inf


BROKEN = ServiceError("out of luck")


def test_an_engines_error_replaces_the_answer() -> None:
    response = Answer(call()).add(Output("r", (), finish_reason="error", error=BROKEN, final=True))
    assert response == Response({}, final=True, error=BROKEN)


# --- guides


def guide(kind: str | None = None, text: str | None = None) -> Guide | None:
    given = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text}
    arrays = {name: np.array([[value.encode()]], object) for name, value in given.items() if value is not None}
    return call(**arrays).request.sampling.guide


def test_a_guide_has_the_types_of_upstream_and_one_more() -> None:
    assert guide() is None and guide("", "") is None
    assert guide("json") == guide("json", "") == Guide("json")
    for kind in ("json_schema", "regex", "ebnf_grammar", "choice"):
        assert guide(kind, "é") == Guide(kind, "é")


@pytest.mark.parametrize(
    ("kind", "text", "error", "param", "words"),
    [
        ("poem", "{}", UnsupportedError, "guided_decoding_guide_type", "json_schema, regex, ebnf_grammar"),
        ("JSON", None, UnsupportedError, "guided_decoding_guide_type", "'JSON'"),
        (None, "a+", UnsupportedError, "guided_decoding_guide_type", "there are json"),
        ("regex", None, RequestError, "guided_decoding_guide", "regex needs a guide"),
        ("regex", "", RequestError, "guided_decoding_guide", "regex needs a guide"),
        ("json", "{}", RequestError, "guided_decoding_guide", "json takes no guide"),
    ],
)
def test_a_guide_that_is_incomplete_or_unknown_is_refused(
    kind: str | None, text: str | None, error: type[RequestError], param: str, words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)) as refused:
        guide(kind, text)
    assert refused.value.param == param
