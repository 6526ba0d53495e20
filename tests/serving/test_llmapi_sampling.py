"""A request as the LLM API's sampling parameters: mapped, or refused by the name of its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from conch.backend.llmapi.sampler import Sampler, release_number, sampler_of
from conch.backend.llmapi.sampling import Model, guide_kwargs, sampling_kwargs
from conch.engine.guide import Guide, GuideKind
from conch.engine.request import Request, SamplingParams
from conch_build.errors import RequestError, UnsupportedError

TORCH = sampler_of({}, "1.2.1")
CLASSIC = sampler_of({"sampler_type": "TRTLLMSampler"}, "1.2.1")
GREEDY = {"temperature": 0.0}


def model(sampler: Sampler = TORCH, *, ends: tuple[int, ...] = (2,), guides: str | None = "xgrammar") -> Model:
    return Model(sampler, vocab_size=10, end_ids=frozenset(ends), pad_id=0, guides=guides)


def kwargs(of: Model | None = None, index: int = 0, **sampling: Any) -> dict[str, Any]:
    request = Request("r", [1, 2], max_tokens=7, sampling=SamplingParams(**sampling))
    return sampling_kwargs(request, of or model(), index, random_seed=lambda: 99)


def refused(of: Model | None = None, priority: int = 0, **sampling: Any) -> str | None:
    request = Request("r", [1, 2], max_tokens=7, sampling=SamplingParams(**sampling), priority=priority)
    with pytest.raises(UnsupportedError) as error:
        sampling_kwargs(request, of or model())
    assert str(error.value.param) in error.value.message
    return error.value.param


def test_an_answer_is_one_request_that_nobody_detokenizes() -> None:
    given = kwargs()
    assert (given["max_tokens"], given["n"], given["detokenize"]) == (7, 1, False)


def test_a_greedy_request_takes_the_best_token_and_asks_for_no_draw() -> None:
    given = kwargs(**GREEDY)
    assert given["top_k"] == 1
    assert not given.keys() & {"temperature", "top_p", "seed"}


def test_a_draw_from_everything_says_so_as_silence_would_mean_the_best_token() -> None:
    assert kwargs().items() >= {"temperature": 1.0, "top_p": 1.0}.items()
    assert "top_k" not in kwargs()
    assert kwargs(temperature=0.5, top_k=4, top_p=0.9).items() >= {"temperature": 0.5, "top_k": 4, "top_p": 0.9}.items()


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_are_refused_where_the_sampler_would_ignore_them(name: str) -> None:
    assert refused(**{name: 1.5}) == name
    assert kwargs(model(CLASSIC), **{name: 1.5})[name] == 1.5
    assert name not in kwargs(**{name: 1.0 if name.startswith("rep") else 0.0})


def test_the_refusal_names_the_sampler_that_has_it() -> None:
    with pytest.raises(UnsupportedError, match="sampler_type: TRTLLMSampler"):
        kwargs(presence_penalty=1.0)
    guessing = model(sampler_of({"speculative_config": {"decoding_type": "NGram"}}, "1.2.1"))
    with pytest.raises(UnsupportedError, match=r"Leave it out\.$"):
        kwargs(guessing, presence_penalty=1.0)


def test_a_seed_is_honoured_or_refused_and_answers_beside_each_other_differ() -> None:
    assert refused(seed=5) == "seed"
    assert "seed" not in kwargs(seed=5, **GREEDY)
    assert [kwargs(model(CLASSIC), index, seed=5)["seed"] for index in (0, 1)] == [5, 6]
    assert kwargs(model(CLASSIC), index=1, seed=2**63 - 1)["seed"] == 0


def test_without_a_seed_the_old_sampler_is_given_one_as_it_would_repeat_itself() -> None:
    assert kwargs(model(CLASSIC))["seed"] == 99
    assert "seed" not in kwargs()


def test_min_p_needs_a_sampler_that_has_it() -> None:
    assert refused(min_p=0.1) == "conch_min_p"
    assert kwargs(model(CLASSIC), min_p=0.1)["min_p"] == 0.1


def test_later_releases_have_what_the_torch_sampler_lacked() -> None:
    assert not sampler_of({}, "1.3.0rc21").penalties
    assert sampler_of({}, "1.3.0rc24").penalties
    assert sampler_of({}, "1.3.0rc26").min_p and not sampler_of({}, "1.3.0rc26").seed
    assert sampler_of({}, "1.4.0rc4").seed


@pytest.mark.parametrize(
    ("release", "number"), [("1.2.1", (1, 2, 1, 10000)), ("1.3.0rc21", (1, 3, 0, 21)), ("1.2", (1, 2, 0, 10000))]
)
def test_candidates_come_before_their_release(release: str, number: tuple[int, ...]) -> None:
    assert release_number(release) == number
    assert release_number("1.3.0rc21") < release_number("1.3.0")
    with pytest.raises(RequestError):
        release_number("latest")


def test_one_end_id_is_the_end_and_the_others_stop_and_stay_visible() -> None:
    given = kwargs(model(ends=(2, 9)))
    assert (given["end_id"], given["stop_token_ids"], given["include_stop_str_in_output"]) == (2, [9], True)
    assert "stop_token_ids" not in kwargs()
    assert kwargs(end_ids=frozenset({5}))["end_id"] == 5


def test_no_end_id_at_all_means_that_nothing_ends_the_answer() -> None:
    given = kwargs(end_ids=frozenset())
    assert (given["end_id"], given["ignore_eos"]) == (-1, True)
    assert not kwargs()["ignore_eos"]


def test_stop_words_of_one_token_stop_at_once_and_longer_ones_are_sought_on_this_side() -> None:
    assert kwargs(stop_words=((3,), (4, 5)))["stop_token_ids"] == [3]


def test_a_least_length_holds_back_the_one_end_id_and_no_stop_word_is_handed_on() -> None:
    given = kwargs(min_tokens=4, stop_words=((3,),))
    assert given["min_tokens"] == 4
    assert "stop_token_ids" not in given
    assert refused(model(ends=(2, 9)), min_tokens=4) == "min_tokens"
    assert "min_tokens" not in kwargs(model(ends=(2, 9)), min_tokens=1)


def test_log_probabilities_and_the_best_tokens_beside_them() -> None:
    assert "logprobs" not in kwargs()
    assert kwargs(log_probs=True)["logprobs"] == 1
    assert kwargs(log_probs=True, top_log_probs=5)["logprobs"] == 5
    assert refused(model(CLASSIC), log_probs=True, top_log_probs=5) == "conch_top_log_probs"
    assert refused(prompt_log_probs=True) == "conch_return_prompt_log_probs"


def test_biases_and_forbidden_tokens_are_one_vector() -> None:
    bias = np.zeros(10, np.float32)
    bias[3] = 1.5
    given = kwargs(embedding_bias=bias, logit_bias={3: 1.0, 4: -2.0}, bad_words=((7,),))["embedding_bias"]
    assert given.dtype == np.float32
    assert (given[3], given[4], given[7], given[0]) == (2.5, -2.0, -np.inf, 0.0)
    assert "embedding_bias" not in kwargs()


def test_a_forbidden_word_of_several_tokens_is_refused() -> None:
    assert refused(bad_words=((7,), (7, 8))) == "bad_words_list"


def test_priorities_are_refused() -> None:
    assert refused(priority=1) == "conch_priority"


ONE_MODEL: Mapping[str, Any] = {"speculative_config": {"decoding_type": "Eagle", "speculative_model_dir": "/head"}}


def test_speculation_inside_the_graph_takes_the_best_token_and_says_what_it_lacks() -> None:
    inside = model(sampler_of(ONE_MODEL, "1.2.1"))
    assert kwargs(inside, **GREEDY)["top_k"] == 1
    assert refused(inside) == "temperature"
    assert refused(inside, log_probs=True, **GREEDY) == "return_log_probs"
    assert refused(inside, logit_bias={1: 1.0}, **GREEDY) == "embedding_bias"
    assert refused(inside, bad_words=((1,),), **GREEDY) == "bad_words_list"
    assert refused(inside, min_tokens=3, **GREEDY) == "min_tokens"


def test_speculation_that_may_sample_or_runs_beside_the_model_does() -> None:
    allowed = {"speculative_config": {**ONE_MODEL["speculative_config"], "allow_advanced_sampling": True}}
    beside = {"speculative_config": {**ONE_MODEL["speculative_config"], "eagle3_one_model": False}}
    drafted = {"speculative_config": {"decoding_type": "DraftTarget"}}
    for args in (allowed, beside, drafted):
        assert kwargs(model(sampler_of(args, "1.2.1")))["temperature"] == 1.0
    assert sampler_of(beside, "1.2.1").log_probs and sampler_of(drafted, "1.2.1").log_probs


GUIDES: list[tuple[GuideKind, str, dict[str, Any]]] = [
    ("json", "", {"json_object": True}),
    ("json_schema", '{"type": "object"}', {"json": '{"type": "object"}'}),
    ("regex", "a+", {"regex": "a+"}),
    ("ebnf_grammar", 'root ::= "a"', {"grammar": 'root ::= "a"'}),
    ("structural_tag", "{}", {"structural_tag": "{}"}),
    ("choice", '["yes", "a \\"b\\"\\n"]', {"grammar": 'root ::= "yes" | "a \\"b\\"\\n"'}),
]


@pytest.mark.parametrize(("kind", "text", "expected"), GUIDES)
def test_every_kind_of_guide_has_its_parameter(kind: GuideKind, text: str, expected: dict[str, Any]) -> None:
    assert guide_kwargs(Guide(kind, text), model()) == expected


@pytest.mark.parametrize("kind", ["choice", "ebnf_grammar", "structural_tag"])
def test_guides_that_only_xgrammar_has_are_refused_beside_another(kind: GuideKind) -> None:
    with pytest.raises(UnsupportedError, match="llguidance"):
        guide_kwargs(Guide(kind, '["a"]'), model(guides="llguidance"))
    assert guide_kwargs(Guide("regex", "a"), model(guides="llguidance"))


def test_guides_are_refused_without_a_library_without_an_end_and_when_they_are_wrong() -> None:
    with pytest.raises(UnsupportedError, match="without guided decoding"):
        guide_kwargs(Guide("json"), model(guides=None))
    with pytest.raises(RequestError, match="bytes"):
        guide_kwargs(Guide("regex", "a" * 200_000), model())
    with pytest.raises(RequestError, match="JSON list"):
        guide_kwargs(Guide("choice", '["", 3]'), model())
    assert refused(guide=Guide("json"), end_ids=frozenset()) == "guided_decoding_guide_type"
