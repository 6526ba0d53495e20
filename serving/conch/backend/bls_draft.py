"""The loop of draft and target: one model guesses a few tokens, the other verifies them, both by requests.

Each round is a request of its own with the answer so far as its prompt, so that both need to reuse KV blocks. What
would have to be remembered over rounds is refused by name. Knows nothing of Triton and of text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from conch.backend.arrays import Arrays
from conch.backend.bls_tensors import Tensors, flag, number
from conch.backend.words import decode_words
from conch_build.errors import RequestError, UnsupportedError

Ask = Callable[[Tensors], Arrays]
"""One request without streaming, to a model of token ids."""

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "streaming": (0,),
    "beam_width": (0, 1),
    "num_return_sequences": (0, 1),
    "return_context_logits": (0,),
    "return_generation_logits": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "guided_decoding_guide_type": (),
}
"""Inputs that a loop of requests cannot honour, and the values that ask for nothing."""
_TARGET_ONLY = ("lora_task_id", "lora_weights", "lora_config", "return_log_probs", "return_perf_metrics")
_OF_THE_FIRST = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "conch_cached_tokens")


@dataclass
class _Round:
    """What the target made of some guesses."""

    ids: list[int]
    accepted: int
    reason: str | None
    """None: the backend does not tell."""
    tensors: Arrays

    def ends(self, guesses: list[int]) -> bool:
        """Whether the target has come to an end; if it does not tell: it has added no token of its own."""
        if self.reason is not None:
            return self.reason not in ("", "length")
        return not self.ids or self.ids == guesses


def check(inputs: Tensors) -> None:
    """Raises UnsupportedError for an input of `tensorrt_llm` that the loop cannot honour, by its name."""
    for name, neutral in _NEUTRAL.items():
        array = inputs.get(name)
        if array is None or (array.dtype != np.object_ and np.isin(array, neutral).all()):
            continue
        raise UnsupportedError(f"`{name}` does not go with `num_draft_tokens`", param=name, fix="Leave one out.")


def speculate(inputs: Tensors, count: int, draft: Ask, target: Ask, *, logits: bool = False) -> Tensors:
    """The whole answer as tensors of one response; greedy, it is the target's own.

    `inputs` are those of `tensorrt_llm`; `count` tokens are guessed at most in a round; with `logits` the target gets
    the draft's logits beside its tokens. Raises RequestError, and what the two raise.
    """
    check(inputs)
    if count < 1:
        raise RequestError(f"`num_draft_tokens` must be 1 or more, not {count}", param="num_draft_tokens")
    prompt = inputs["input_ids"].ravel()[: number(inputs, "input_lengths")].tolist()
    wanted, least = number(inputs, "request_output_len"), number(inputs, "min_tokens")
    words = decode_words(inputs["stop_words_list"], "stop_words_list") if "stop_words_list" in inputs else ()
    end_id = number(inputs, "end_id", -1)
    answer: list[int] = []
    rounds: list[_Round] = []
    guessed, reason = 0, "length"
    while len(answer) < wanted:
        step = _continued(inputs, [*prompt, *answer], least - len(answer), len(answer))
        guesses, further = _guess(step, min(count, wanted - len(answer) - 1), draft, logits)
        one = _verify({**step, **further}, guesses, target)
        if ended := end_id in one.ids:  # some backends give it out
            del one.ids[one.ids.index(end_id) :]
        rounds.append(one)
        guessed += len(guesses)
        start, answer = len(answer), [*answer, *one.ids]
        if end := _stop(answer, max(start, least - 1), words):
            answer = answer[:end]
        if end or ended or one.ends(guesses):
            reason = "stop"
            break
    return _whole(inputs, prompt, answer, rounds, guessed, reason)


def _continued(inputs: Tensors, ids: list[int], least: int, done: int) -> Tensors:
    """The request that goes on behind `ids`; `least`: tokens that it must still give."""
    step = {
        **inputs,
        "input_ids": np.array([ids], np.int32),
        "input_lengths": _scalar(len(ids)),
        "exclude_input_in_output": np.array([[True]]),
    }
    if "min_tokens" in inputs:
        step["min_tokens"] = _scalar(max(0, least))
    if "seed" in inputs:  # else every round would draw the same
        step["seed"] = inputs["seed"] + np.uint64(done)
    return step


def _guess(step: Tensors, count: int, draft: Ask, logits: bool) -> tuple[list[int], Tensors]:
    """The draft's tokens, and what the target needs beside its own inputs to verify them."""
    if count < 1:
        return [], {}
    asked = {name: array for name, array in step.items() if name not in _TARGET_ONLY}
    asked["request_output_len"] = _scalar(count)
    if logits:
        asked["return_generation_logits"] = np.array([[True]])
    given = draft(asked)
    guesses = _ids(given)[:count]
    if not guesses:
        return [], {}
    further: Tensors = {"draft_input_ids": np.array([guesses], np.int32)}
    if logits:
        further["draft_logits"] = given["generation_logits"][:, 0, : len(guesses)]
    return guesses, further


def _verify(step: Tensors, guesses: list[int], target: Ask) -> _Round:
    given = target({**step, "request_output_len": _scalar(len(guesses) + 1)})
    ids = _ids(given)
    accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, guesses, strict=False)))
    told = given.get("conch_finish_reason")
    return _Round(ids, accepted, None if told is None else told.ravel()[0].decode(), given)


def _stop(answer: list[int], start: int, words: tuple[tuple[int, ...], ...]) -> int | None:
    """Where the first stop word ends that ends behind `start`: it may have begun in an earlier round."""
    for end in range(start + 1, len(answer) + 1):
        if any(tuple(answer[max(0, end - len(word)) : end]) == word for word in words):
            return end
    return None


def _whole(
    inputs: Tensors, prompt: list[int], answer: list[int], rounds: list[_Round], guessed: int, reason: str
) -> Tensors:
    """One response that looks as if one request had given it."""
    shown = answer if flag(inputs, "exclude_input_in_output") else [*prompt, *answer]
    tensors: Tensors = dict(rounds[-1].tensors) if rounds else {}
    tensors |= {name: rounds[0].tensors[name] for name in _OF_THE_FIRST if name in tensors}
    tensors["output_ids"] = np.array([[shown]], np.int32)
    tensors["sequence_length"] = _scalar(len(shown))
    tensors["conch_finish_reason"] = np.array([[reason.encode()]], np.object_)
    if "output_log_probs" in tensors:
        scores = np.concatenate([one.tensors["output_log_probs"].reshape(-1)[: len(one.ids)] for one in rounds])
        tensors["output_log_probs"] = scores[: len(answer)].astype(np.float32).reshape(1, 1, -1)
        tensors["cum_log_probs"] = np.array([[scores[: len(answer)].sum()]], np.float32)
    if flag(inputs, "return_perf_metrics"):
        accepted = sum(one.accepted for one in rounds)
        tensors["total_draft_tokens"] = _scalar(guessed)
        tensors["total_accepted_draft_tokens"] = _scalar(accepted)
        tensors["acceptance_rate"] = np.array([[accepted / max(1, guessed)]], np.float32)
    if flag(inputs, "return_num_input_tokens"):
        tensors["num_input_tokens"] = _scalar(len(prompt))
    if flag(inputs, "return_num_output_tokens"):
        tensors["num_output_tokens"] = _scalar(len(answer))
    return tensors


def _ids(given: Arrays) -> list[int]:
    length = number(given, "sequence_length")
    ids: list[int] = given["output_ids"].ravel()[:length].tolist()
    return ids


def _scalar(value: int) -> NDArray[np.int32]:
    return np.array([[value]], np.int32)
