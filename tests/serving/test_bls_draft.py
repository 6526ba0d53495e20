"""The loop of draft and target, with models that are functions: the answer is the target's, whatever is guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from conch.backend.bls_draft import speculate
from conch.backend.bls_tensors import Tensors
from conch.backend.words import encode_words
from conch_build.errors import RequestError, UnsupportedError

END = 99
PROMPT = [3, 4]

Rule = Callable[[Sequence[int]], int]


def count_up(ids: Sequence[int]) -> int:
    """The next number, with END behind 12."""
    return END if ids[-1] == 12 else ids[-1] + 1


class Model:
    """Greedy, as a backend is: `tells` its reasons as Conch's does, or leaves them to be found out."""

    def __init__(self, rule: Rule, *, tells: bool) -> None:
        self._rule = rule
        self._tells = tells
        self.asked: list[Tensors] = []

    def __call__(self, inputs: Tensors) -> Tensors:
        self.asked.append(inputs)
        prompt = inputs["input_ids"].ravel().tolist()
        guesses = inputs.get("draft_input_ids", np.empty(0, np.int32)).ravel().tolist()
        ids: list[int] = []
        reason = b"length"
        while len(ids) < inputs["request_output_len"].item():
            token = self._rule([*prompt, *ids])
            if token == END:
                reason = b"stop"
                break
            ids.append(token)
            if guesses and (len(ids) > len(guesses) or token != guesses[len(ids) - 1]):
                break
        assert bool(inputs["exclude_input_in_output"].item())
        given: Tensors = {
            "output_ids": np.array([[[*ids, 0, 0]]], np.int32),  # padded, as upstream's may be
            "sequence_length": np.array([[len(ids)]], np.int32),
            "output_log_probs": -np.array([[ids]], np.float32),
        }
        return given | ({"conch_finish_reason": np.array([[reason]], np.object_)} if self._tells else {})


def asked(count: int = 8, **more: Any) -> Tensors:
    inputs: Tensors = {
        "input_ids": np.array([PROMPT], np.int32),
        "input_lengths": np.array([[len(PROMPT)]], np.int32),
        "request_output_len": np.array([[count]], np.int32),
        "exclude_input_in_output": np.array([[True]]),
        "return_perf_metrics": np.array([[True]]),
    }
    return inputs | {name: np.array([[value]]) for name, value in more.items()}


def ids(response: Tensors) -> list[int]:
    found: list[int] = response["output_ids"].ravel().tolist()
    assert len(found) == response["sequence_length"].item()
    return found


DRAFTS: dict[str, Rule] = {
    "right": count_up,
    "wrong": lambda ids: 50,
    "right every third time": lambda ids: count_up(ids) if len(ids) % 3 else 50,
    "ends at once": lambda ids: END,
    "goes on behind the end": lambda ids: ids[-1] + 1,
}


@pytest.mark.parametrize("tells", [True, False], ids=["reason told", "reason found out"])
@pytest.mark.parametrize("rule", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("guesses", [1, 3, 20])
@pytest.mark.parametrize("wanted", [1, 2, 5, 8, 20])
def test_the_answer_is_the_targets(tells: bool, rule: Rule, guesses: int, wanted: int) -> None:
    draft, target = Model(rule, tells=tells), Model(count_up, tells=tells)
    response = speculate(asked(wanted), guesses, draft, target)
    assert ids(response) == list(range(5, 13))[:wanted]
    assert response["conch_finish_reason"].item() == (b"stop" if wanted > 8 else b"length")


def test_right_guesses_save_requests_to_the_target() -> None:
    target = Model(count_up, tells=True)
    response = speculate(asked(8), 3, Model(count_up, tells=True), target)
    assert [request["request_output_len"].item() for request in target.asked] == [4, 4]
    assert response["total_draft_tokens"].item() == response["total_accepted_draft_tokens"].item() == 6
    assert response["acceptance_rate"].item() == 1


def test_each_round_goes_on_behind_the_answer_so_far() -> None:
    target = Model(count_up, tells=True)
    speculate(asked(6, min_tokens=5, seed=np.uint64(7)), 2, Model(count_up, tells=True), target)
    assert [request["input_ids"].tolist() for request in target.asked] == [[[3, 4]], [[3, 4, 5, 6, 7]]]
    assert [request["min_tokens"].item() for request in target.asked] == [5, 2]
    assert [request["seed"].item() for request in target.asked] == [7, 10]


def test_a_stop_word_counts_that_began_in_an_earlier_round() -> None:
    words = encode_words([(7, 8)])[None]
    for guesses in (1, 2, 3):
        models = (Model(count_up, tells=True) for _ in range(2))
        response = speculate(asked(8) | {"stop_words_list": words}, guesses, *models)
        assert ids(response) == [5, 6, 7, 8]
        assert response["conch_finish_reason"].item() == b"stop"


def test_an_end_id_that_is_given_out_ends_the_answer_and_is_no_part_of_it() -> None:
    models = (Model(lambda ids: ids[-1] + 1, tells=False) for _ in range(2))
    assert ids(speculate(asked(8, end_id=8), 2, *models)) == [5, 6, 7]


def test_log_probabilities_are_joined() -> None:
    models = (Model(count_up, tells=True) for _ in range(2))
    response = speculate(asked(6), 2, *models)
    assert response["output_log_probs"].tolist() == [[[-5.0, -6.0, -7.0, -8.0, -9.0, -10.0]]]
    assert response["cum_log_probs"].item() == -45


def test_the_prompt_comes_with_the_answer_unless_it_is_excluded() -> None:
    models = (Model(count_up, tells=True) for _ in range(2))
    response = speculate(asked(2, exclude_input_in_output=False, return_num_output_tokens=True), 2, *models)
    assert ids(response) == [3, 4, 5, 6]
    assert response["num_output_tokens"].item() == 2


def test_adapters_are_the_targets_alone() -> None:
    draft, target = Model(count_up, tells=True), Model(count_up, tells=True)
    speculate(asked(4, lora_task_id=np.uint64(1)), 2, draft, target)
    assert all("lora_task_id" in request for request in target.asked)
    assert not any("lora_task_id" in request for request in draft.asked)


@pytest.mark.parametrize(
    "name", ["streaming", "presence_penalty", "frequency_penalty", "return_context_logits", "num_return_sequences"]
)
def test_what_would_have_to_be_remembered_over_rounds_is_refused(name: str) -> None:
    models = (Model(count_up, tells=True) for _ in range(2))
    with pytest.raises(UnsupportedError, match=f"`{name}` does not go with `num_draft_tokens`"):
        speculate(asked(4, **{name: 2}), 2, *models)


def test_a_negative_number_of_guesses_is_refused() -> None:
    models = (Model(count_up, tells=True) for _ in range(2))
    with pytest.raises(RequestError, match="must be 1 or more, not -1"):
        speculate(asked(4), -1, *models)
