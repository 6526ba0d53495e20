"""A request as keyword arguments of the LLM API's `SamplingParams`. What it cannot do is refused by name.

Stop words are not handed on: `outputs` looks for them, as the LLM API knows texts only. Needs no `tensorrt_llm`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.backend.llmapi.sampler import Sampler
from conch.engine.guide import MAX_GUIDE_BYTES, Guide, choices_in
from conch.engine.request import Request, SamplingParams
from conch_build.errors import RequestError, UnsupportedError

_NO_END = -1
_SEEDS = 1 << 63


@dataclass(frozen=True)
class Model:
    """What the mapping needs to know of what is served."""

    sampler: Sampler
    vocab_size: int
    end_ids: frozenset[int]
    pad_id: int | None
    guides: str | None
    """Library for guided decoding; None: there is none."""


def sampling_kwargs(
    request: Request, model: Model, index: int = 0, random_seed: Callable[[], int] = lambda: secrets.randbelow(_SEEDS)
) -> dict[str, Any]:
    """Those of answer `index`, which is a request of its own to the LLM API. `embedding_bias` is an FP32 array.

    Raises UnsupportedError that names the tensor.
    """
    _refuse(request, model)
    sampling = request.sampling
    return {
        "max_tokens": request.max_tokens,
        "n": 1,
        "detokenize": False,
        "return_perf_metrics": True,
        **_ends(sampling, model),
        **_choice(sampling, model.sampler, index, random_seed),
        **_penalties(sampling),
        **_log_probs(sampling),
        **_bias(sampling, model.vocab_size),
    }


def guide_kwargs(guide: Guide, model: Model) -> dict[str, Any]:
    """A guide as keyword arguments of `GuidedDecodingParams`. Raises RequestError or UnsupportedError."""
    if model.guides is None:
        raise _no("guided_decoding_guide_type", "this engine was built without guided decoding")
    if len(guide.text.encode("utf-8", "replace")) > MAX_GUIDE_BYTES:
        raise RequestError(
            f"`guided_decoding_guide` has more than {MAX_GUIDE_BYTES} bytes", param="guided_decoding_guide"
        )
    if guide.kind in ("choice", "ebnf_grammar", "structural_tag") and model.guides != "xgrammar":
        raise _no("guided_decoding_guide_type", f"{model.guides} has no guide of the type {guide.kind}")
    match guide.kind:
        case "json":
            return {"json_object": True}
        case "json_schema":
            return {"json": guide.text}
        case "regex":
            return {"regex": guide.text}
        case "ebnf_grammar":
            return {"grammar": guide.text}
        case "structural_tag":
            return {"structural_tag": guide.text}
        case "choice":
            return {"grammar": f"root ::= {' | '.join(_quoted(text) for text in _choices(guide.text))}"}


def end_ids(sampling: SamplingParams, model: Model) -> frozenset[int]:
    """Those in force: the request's own, or the model's."""
    return model.end_ids if sampling.end_ids is None else sampling.end_ids


def _refuse(request: Request, model: Model) -> None:
    sampling, sampler = request.sampling, model.sampler
    ends = end_ids(sampling, model)
    if request.priority:
        raise _no("conch_priority", "the LLM API has no priorities")
    if sampling.prompt_log_probs:
        raise _no("conch_return_prompt_log_probs", "the LLM API gives no log probabilities of a prompt's own tokens")
    if not (sampling.greedy or sampler.choice):
        raise sampler.refuse("choice but the best token", "temperature")
    for name, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(sampling, name) != neutral and not sampler.penalties:
            raise sampler.refuse("penalties", name)
    if sampling.min_p and not sampler.min_p:
        raise sampler.refuse("min-p", "conch_min_p")
    if sampling.seed is not None and not (sampler.seed or sampling.greedy):
        raise sampler.refuse("seed of a request", "seed")
    if sampling.log_probs and not sampler.log_probs:
        raise sampler.refuse("log probabilities", "return_log_probs")
    if sampling.top_log_probs and not sampler.top_log_probs:
        raise sampler.refuse("log probabilities of other tokens", "conch_top_log_probs")
    if any(len(word) > 1 for word in sampling.bad_words):
        raise _no("bad_words_list", "the LLM API forbids single tokens only, and a word here has several")
    if (sampling.bad_words or sampling.logit_bias or sampling.embedding_bias is not None) and not sampler.bias:
        raise sampler.refuse("bias of tokens", "bad_words_list" if sampling.bad_words else "embedding_bias")
    if sampling.min_tokens > 1 and not sampler.min_tokens:
        raise sampler.refuse("least number of tokens", "min_tokens")
    if sampling.min_tokens > 1 and len(ends) > 1:
        raise _no("min_tokens", "the LLM API holds back one end id, and there are several", "Send one `end_id`.")
    if sampling.guide is not None and not ends:
        raise _no("guided_decoding_guide_type", "a guided answer ends with an end id, and none is allowed")


def _ends(sampling: SamplingParams, model: Model) -> dict[str, Any]:
    """One end id is the LLM API's own, further ones and single stop tokens its stop tokens."""
    first, *others = [*sorted(end_ids(sampling, model)), _NO_END]
    pad = model.pad_id if model.pad_id is not None else max(first, 0)
    kwargs: dict[str, Any] = {"end_id": first, "pad_id": pad, "ignore_eos": first == _NO_END}
    stops = [token for token in others if token != _NO_END]
    if sampling.min_tokens > 1:
        kwargs["min_tokens"] = sampling.min_tokens
    else:
        stops += [word[0] for word in sampling.stop_words if len(word) == 1]
    if stops:
        kwargs |= {"stop_token_ids": list(dict.fromkeys(stops)), "include_stop_str_in_output": True}
    return kwargs


def _choice(sampling: SamplingParams, sampler: Sampler, index: int, random_seed: Callable[[], int]) -> dict[str, Any]:
    """With neither top-k nor top-p the LLM API takes the best token: one of them is always said."""
    if sampling.greedy:
        return {"top_k": 1}
    kwargs: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.top_k:
        kwargs["top_k"] = sampling.top_k
    if sampling.min_p:
        kwargs["min_p"] = sampling.min_p
    if sampler.seed:  # without one it draws the same in every request
        seed = random_seed() if sampling.seed is None else sampling.seed
        kwargs["seed"] = (seed + index) % _SEEDS
    return kwargs


def _penalties(sampling: SamplingParams) -> dict[str, float]:
    named = {
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
        "presence_penalty": (sampling.presence_penalty, 0.0),
        "frequency_penalty": (sampling.frequency_penalty, 0.0),
    }
    return {name: value for name, (value, neutral) in named.items() if value != neutral}


def _log_probs(sampling: SamplingParams) -> dict[str, int]:
    return {"logprobs": max(1, sampling.top_log_probs)} if sampling.log_probs else {}


def _bias(sampling: SamplingParams, vocab_size: int) -> dict[str, NDArray[np.float32]]:
    """Bias and single forbidden tokens as one vector."""
    if not (sampling.logit_bias or sampling.bad_words or sampling.embedding_bias is not None):
        return {}
    bias = np.zeros(vocab_size, np.float32)
    if sampling.embedding_bias is not None:
        bias += sampling.embedding_bias.astype(np.float32)
    for token, value in sampling.logit_bias.items():
        bias[token] += value
    bias[[word[0] for word in sampling.bad_words]] = -np.inf
    return {"embedding_bias": bias}


def _choices(text: str) -> list[str]:
    try:
        return choices_in(text)
    except ValueError as error:
        raise RequestError(f"`guided_decoding_guide`: {error}", param="guided_decoding_guide") from None


def _quoted(text: str) -> str:
    """A text as a grammar has it between quotes."""
    escapes: Mapping[str, str] = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


def _no(param: str, what: str, fix: str = "Leave the tensor out.") -> UnsupportedError:
    return UnsupportedError(f"`{param}`: {what}", param=param, fix=fix)
