"""Several answers to one prompt, the prompt in the answer, and who goes first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Gateway, choices, eventually, reason_of, text_of

HELLO = [{"role": "user", "content": "Name an animal."}]
COUNT = {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 6, "temperature": 0}


@pytest.mark.conforms("GEN-4", "GEN-3", "GEN-1")
def test_several_answers_share_a_prompt_and_a_seed_repeats_them(gateway: Gateway) -> None:
    body = {"messages": HELLO, "max_tokens": 12, "n": 4, "seed": 11}
    whole = gateway.ok("chat/completions", **body)
    texts = [text_of(whole, index) for index in range(4)]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    one = gateway.ok("chat/completions", **{**body, "n": 1})
    assert whole["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert text_of(one) == texts[0]
    stream = gateway.ok("chat/completions", **body, stream=True, stream_options={"include_usage": True})
    assert [text_of(stream, index) for index in range(4)] == texts
    assert [reason_of(stream, index) for index in range(4)] == [c["finish_reason"] for c in whole["choices"]]
    assert stream[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    roles = [choice for choice in choices(stream, 2) if choice["delta"].get("role")]
    assert len(roles) == 1


@pytest.mark.conforms("GEN-4", "GEN-5")
def test_an_answer_that_stops_early_leaves_the_others_alone(gateway: Gateway) -> None:
    body = {"messages": HELLO, "max_tokens": 24, "n": 3, "seed": 5}
    free = [text_of(gateway.ok("chat/completions", **body), index) for index in range(3)]
    stop = next(text[3:7] for text in free if sum(text[3:7] in other for other in free) == 1)
    stopped = gateway.ok("chat/completions", **body, stop=stop)
    assert [text_of(stopped, index) for index in range(3)] == [text.split(stop)[0] for text in free]


@pytest.mark.conforms("GEN-4", "REQ-9")
def test_more_answers_than_the_engine_has_room_for_are_refused(gateway: Gateway) -> None:
    assert gateway.refused("chat/completions", messages=HELLO, n=100)["param"] == "n"
    assert gateway.refused("chat/completions", messages=HELLO, n=10**9)["param"] == "n"
    assert gateway.refused("completions", prompt=["a"] * 3, n=100)["param"] == "n"


@pytest.mark.conforms("GEN-4")
def test_each_prompt_has_its_answers_in_a_row(gateway: Gateway) -> None:
    whole = gateway.ok("completions", prompt=["1, 2,", "a, b,"], max_tokens=4, temperature=0, n=2)
    texts = [text_of(whole, index) for index in range(4)]
    assert texts[0] == texts[1] != texts[2] == texts[3]


@pytest.mark.conforms("GEN-10")
def test_the_likeliest_answer_is_given(gateway: Gateway) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 6, "seed": 3, "logprobs": 0}
    every = gateway.ok("completions", **body, n=4)["choices"]
    means = {choice["text"]: sum(choice["logprobs"]["token_logprobs"]) for choice in every}
    best = gateway.ok("completions", **body, best_of=4)
    assert text_of(best) == max(means, key=lambda text: means[text])
    status, answer = gateway.post("completions", {**body, "best_of": 4, "stream": True})
    assert (status, answer["error"]["param"]) == (400, "best_of")
    assert gateway.refused("completions", **body, best_of=1, n=2)["param"] == "best_of"


@pytest.mark.conforms("GEN-9")
@pytest.mark.parametrize("stream", [False, True])
def test_the_echo_is_the_prompt_unchanged(gateway: Gateway, stream: bool) -> None:
    prompt = "The cat sat , and it 's ok ."
    answer = gateway.ok("completions", prompt=prompt, echo=True, max_tokens=2, temperature=0, stream=stream)
    alone = gateway.ok("completions", prompt=prompt, max_tokens=2, temperature=0)
    assert text_of(answer) == prompt + text_of(alone)


@pytest.mark.conforms("GEN-9", "GEN-7")
def test_the_echo_brings_the_prompts_log_probs(gateway: Gateway) -> None:
    answer = gateway.ok("completions", **{**COUNT, "max_tokens": 0}, echo=True, logprobs=1)
    assert text_of(answer) == COUNT["prompt"] and answer["usage"]["completion_tokens"] == 0
    log_probs = answer["choices"][0]["logprobs"]
    assert len(log_probs["tokens"]) == answer["usage"]["prompt_tokens"]
    assert log_probs["token_logprobs"][0] is None and all(score < 0 for score in log_probs["token_logprobs"][1:])
    for token, offset in list(zip(log_probs["tokens"], log_probs["text_offset"], strict=True))[1:]:
        assert text_of(answer).startswith(token, offset)
    # What the model finds likely is what it would say.
    more = gateway.ok("completions", prompt=COUNT["prompt"] + " 6", max_tokens=0, echo=True, logprobs=1)
    assert more["choices"][0]["logprobs"]["token_logprobs"][-1] > -0.5
    assert gateway.refused("completions", prompt="a", max_tokens=0)["param"] == "max_tokens"


@pytest.mark.conforms("GEN-8")
def test_prompt_log_probs_are_listed_by_id(gateway: Gateway) -> None:
    answer = gateway.ok("completions", **COUNT, prompt_logprobs=2)
    entries = answer["choices"][0]["prompt_logprobs"]
    assert entries[0] is None and len(entries) == answer["usage"]["prompt_tokens"]
    ids = gateway.http.post("/tokenize", json={"prompt": COUNT["prompt"]}).json()["tokens"]
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        assert entry[str(token)]["logprob"] < 0 and len(entry) in (2, 3)
        assert sorted(item["rank"] for item in entry.values() if item["rank"])[:2] == [1, 2]
    chat = gateway.ok("chat/completions", messages=HELLO, max_tokens=1, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


@pytest.mark.conforms("GEN-6")
def test_a_bad_word_does_not_come(gateway: Gateway) -> None:
    word = text_of(gateway.ok("completions", **COUNT)).split(",")[0].strip()
    assert word not in text_of(gateway.ok("completions", **COUNT, bad_words=[word]))


@pytest.mark.conforms("GEN-11")
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, "default"),
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "fast"}, "priority"),
        ({"priority": -3}, "default"),
    ],
)
def test_the_answer_names_its_tier(gateway: Gateway, asked: dict[str, Any], given: str) -> None:
    body = {"messages": HELLO, "max_tokens": 1, **asked}
    assert gateway.ok("chat/completions", **body)["service_tier"] == given
    assert gateway.ok("chat/completions", **body, stream=True)[0]["service_tier"] == given


@pytest.mark.conforms("GEN-13")
def test_the_last_message_can_be_gone_on_with(gateway: Gateway) -> None:
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3,"}]
    answer = gateway.ok("chat/completions", messages=turns, max_tokens=6, temperature=0, continue_final_message=True)
    assert text_of(answer).startswith(" 4")
    error = gateway.refused("chat/completions", messages=HELLO, chat_template_kwargs={"chat_template": "x"})
    assert error["param"] == "chat_template_kwargs"


@pytest.mark.conforms("GEN-14", "GEN-4")
def test_leaving_cancels_every_answer(gateway: Gateway) -> None:
    body = {"prompt": "1,", "max_tokens": 1500, "n": 3, "ignore_eos": True, "stream": True}
    before = gateway.metric("vllm:request_success_total", finished_reason="abort")
    with gateway.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    assert eventually(lambda: gateway.metric("vllm:request_success_total", finished_reason="abort") == before + 3)
    assert eventually(lambda: gateway.metric("vllm:num_requests_running") == 0)
