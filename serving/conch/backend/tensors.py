"""The input tensors of `tensorrt_llm` as an engine request: every one is honoured or refused by name.

Takes plain arrays, so it needs neither Triton nor an engine. It does not check limits: the engine does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.backend.arrays import Arrays, strings
from conch.backend.words import decode_words
from conch.engine.guide import GUIDE_KINDS, Guide
from conch.engine.request import Request, SamplingParams
from conch_build.errors import NotFoundError, RequestError, UnsupportedError

AdapterNames = Mapping[int, str]
"""Id of a LoRA adapter -> its name."""

_ANY: tuple[float, ...] = ()
# Inputs that this backend cannot honour, and the values that ask for nothing (an empty tensor never does).
_UNSUPPORTED: dict[str, tuple[tuple[float, ...], str]] = {
    "encoder_input_features": (_ANY, "encoder-decoder models"),
    "encoder_output_lengths": (_ANY, "encoder-decoder models"),
    "decoder_input_ids": (_ANY, "encoder-decoder models"),
    "decoder_input_lengths": ((0,), "encoder-decoder models"),
    "cross_attention_mask": (_ANY, "encoder-decoder models"),
    "skip_cross_attn_blocks": ((0,), "encoder-decoder models"),
    "beam_width": ((0, 1), "beam search"),
    "len_penalty": ((0, 1), "beam search"),
    "early_stopping": ((0,), "beam search"),
    "beam_search_diversity_rate": ((0,), "beam search"),
    "draft_logits": (_ANY, "drafts that are judged by their logits"),
    "draft_acceptance_threshold": ((0,), "drafts that are judged by their logits"),
    "lookahead_window_size": (_ANY, "lookahead decoding"),
    "lookahead_ngram_size": (_ANY, "lookahead decoding"),
    "lookahead_verification_set_size": (_ANY, "lookahead decoding"),
    "runtime_top_p_min": ((0, 1e-6), "a top-p that decays"),
    "runtime_top_p_decay": ((0, 1), "a top-p that decays"),
    "runtime_top_p_reset_ids": ((-1,), "a top-p that decays"),
    "return_context_logits": ((0,), "logits as output"),
    "return_generation_logits": ((0,), "logits as output"),
    "prompt_embedding_table": (_ANY, "prompt tuning and multimodal prompts"),
    "prompt_table_extra_ids": ((0,), "prompt tuning and multimodal prompts"),
    "prompt_vocab_size": ((0,), "prompt tuning and multimodal prompts"),
    "mrope_rotary_cos_sin": (_ANY, "multimodal positions"),
    "mrope_position_deltas": (_ANY, "multimodal positions"),
    "lora_weights": (_ANY, "adapters that a request brings: the plan names them"),
    "lora_config": (_ANY, "adapters that a request brings: the plan names them"),
    "retention_token_range_starts": (_ANY, "KV cache retention"),
    "retention_token_range_ends": (_ANY, "KV cache retention"),
    "retention_token_range_priorities": (_ANY, "KV cache retention"),
    "retention_token_range_durations_ms": (_ANY, "KV cache retention"),
    "retention_decode_priority": (_ANY, "KV cache retention"),
    "retention_decode_duration_ms": (_ANY, "KV cache retention"),
}


@dataclass(frozen=True)
class Call:
    """One request to generate: what the engine gets, and how its caller wants the answer."""

    request: Request
    streaming: bool
    exclude_input: bool
    log_probs: bool
    perf_metrics: bool
    num_input_tokens: bool
    num_output_tokens: bool
    context_phase: bytes = b""
    """Where the KV blocks of the prompt, and the start of the answer, are to be had."""
    draft: tuple[int, ...] = ()
    """Tokens that the caller has guessed: the answer ends behind the first one that is wrong."""


def is_stop(inputs: Arrays) -> bool:
    """Whether this only withdraws the request of the same id."""
    return _flag(inputs, "stop")


def decode_call(
    inputs: Arrays, *, request_id: str, exclude_input: bool = False, adapters: AdapterNames = MappingProxyType({})
) -> Call:
    """The request that the tensors describe; each has a leading batch dimension of one.

    Raises RequestError or UnsupportedError, which name the tensor.
    """
    _check_batch(inputs)
    _refuse_unsupported(inputs)
    top_log_probs = _integer(inputs, "conch_top_log_probs", 0)
    log_probs = _flag(inputs, "return_log_probs")
    request = Request(
        id=request_id,
        prompt=_prompt(inputs),
        max_tokens=_required(inputs, "request_output_len"),
        sampling=SamplingParams(
            **_choice_of_tokens(inputs),
            repetition_penalty=_number(inputs, "repetition_penalty", 1.0),
            presence_penalty=_number(inputs, "presence_penalty", 0.0),
            frequency_penalty=_number(inputs, "frequency_penalty", 0.0),
            seed=_integer(inputs, "seed", 0) if "seed" in inputs else None,
            min_tokens=_integer(inputs, "min_tokens", 0),
            logit_bias=_logit_bias(inputs),
            embedding_bias=_embedding_bias(inputs),
            stop_words=_words(inputs, "stop_words_list"),
            bad_words=_words(inputs, "bad_words_list"),
            guide=_guide(inputs),
            end_ids=_end_ids(inputs),
            log_probs=log_probs or top_log_probs > 0,
            top_log_probs=top_log_probs,
            prompt_log_probs=_flag(inputs, "conch_return_prompt_log_probs"),
        ),
        priority=_integer(inputs, "conch_priority", 0),
        n=_integer(inputs, "num_return_sequences", 0) or 1,
        deadline=_deadline(inputs),
        adapter=_adapter(inputs, adapters),
        keep_state=_flag(inputs, "conch_context_only"),
    )
    context_phase = _context_phase(inputs, request)
    return Call(
        request=request,
        streaming=_flag(inputs, "streaming"),
        exclude_input=_flag(inputs, "exclude_input_in_output", exclude_input),
        log_probs=log_probs,
        perf_metrics=_flag(inputs, "return_perf_metrics"),
        num_input_tokens=_flag(inputs, "return_num_input_tokens"),
        num_output_tokens=_flag(inputs, "return_num_output_tokens"),
        context_phase=context_phase,
        draft=_draft(inputs),
    )


def _context_phase(inputs: Arrays, request: Request) -> bytes:
    """Raises UnsupportedError for what the two halves of a request cannot do."""
    params = inputs.get("context_phase_params", np.empty(0, np.uint8))
    if not (params.size or request.keep_state):
        return b""
    for param, found, what in (
        ("num_return_sequences", request.n > 1, "several answers"),
        ("draft_input_ids", "draft_input_ids" in inputs, "guessed tokens"),
        ("conch_return_prompt_log_probs", params.size and request.sampling.prompt_log_probs, "the prompt's log probs"),
        ("conch_context_only", params.size and request.keep_state, "both halves of a request"),
    ):
        if found:
            raise UnsupportedError(f"a disaggregated request has no {what}", param=param, fix="Leave it out.")
    return params.astype(np.uint8).tobytes()


def _check_batch(inputs: Arrays) -> None:
    for name, array in inputs.items():
        if array.ndim and array.shape[0] != 1:
            raise UnsupportedError(
                f"`{name}` holds a batch of {array.shape[0]}",
                param=name,
                fix="Send one request for each prompt: they are batched in flight.",
            )


def _refuse_unsupported(inputs: Arrays) -> None:
    for name, (neutral, what) in _UNSUPPORTED.items():
        array = inputs.get(name)
        if array is None or array.size == 0:
            continue
        if array.dtype == np.object_ or not np.isin(array, np.asarray(neutral, array.dtype)).all():
            raise UnsupportedError(f"`{name}`: this backend has no {what}", param=name, fix="Leave the tensor out.")


def _prompt(inputs: Arrays) -> list[int]:
    if "input_ids" not in inputs:
        raise RequestError("`input_ids` is missing", param="input_ids")
    ids: list[int] = inputs["input_ids"].ravel().tolist()
    length = _required(inputs, "input_lengths")
    if not 0 < length <= len(ids):
        raise RequestError(
            f"`input_lengths` is {length}, but `input_ids` holds {len(ids)} tokens", param="input_lengths"
        )
    return ids[:length]


def _draft(inputs: Arrays) -> tuple[int, ...]:
    if "draft_input_ids" not in inputs or not inputs["draft_input_ids"].size:
        return ()
    for name, neutral in (("streaming", 0), ("num_return_sequences", 1)):
        if _integer(inputs, name, 0) > neutral:
            raise UnsupportedError(f"`{name}` does not go with `draft_input_ids`", param=name, fix="Leave one out.")
    return tuple(inputs["draft_input_ids"].ravel().tolist())


def _choice_of_tokens(inputs: Arrays) -> dict[str, Any]:
    """Upstream's rule: with neither top-k nor top-p the most likely token is taken."""
    top_k = _integer(inputs, "runtime_top_k", 0)
    top_p = _number(inputs, "runtime_top_p", 0.0)
    min_p = _number(inputs, "conch_min_p", 0.0)
    temperature = _number(inputs, "temperature", 1.0)
    if not (top_k or top_p or min_p) and temperature >= 0:  # else the engine says what is wrong with it
        temperature = 0.0
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p or 1.0, "min_p": min_p}


def _words(inputs: Arrays, name: str) -> tuple[tuple[int, ...], ...]:
    return decode_words(inputs[name], name) if name in inputs else ()


def _guide(inputs: Arrays) -> Guide | None:
    """Upstream's kinds of guides and ours; `json` needs no guide beside its type, and takes none."""
    kinds, texts = (strings(inputs, name) for name in ("guided_decoding_guide_type", "guided_decoding_guide"))
    kind, text = "".join(kinds), "".join(texts)
    if not (kind or text):
        return None
    if kind not in GUIDE_KINDS:
        raise UnsupportedError(
            f"`guided_decoding_guide_type` is {kind!r}; there are {', '.join(GUIDE_KINDS)}",
            param="guided_decoding_guide_type",
        )
    if bool(text) == (kind == "json"):
        what = "takes no guide: `json_schema` does" if text else "needs a guide"
        raise RequestError(f"`guided_decoding_guide`: {kind} {what}", param="guided_decoding_guide")
    return Guide(kind, text)


def _adapter(inputs: Arrays, adapters: AdapterNames) -> str | None:
    """0 is the model itself."""
    number = _integer(inputs, "lora_task_id", 0)
    return adapter_name(number, adapters) if number else None


def adapter_name(number: int, adapters: AdapterNames) -> str:
    """The adapter with the id `number`. Raises NotFoundError."""
    if number not in adapters:
        fix = f"There are {', '.join(map(str, adapters))}." if adapters else "The plan names none."
        raise NotFoundError(f"no adapter has the id {number}", param="lora_task_id", code="model_not_found", fix=fix)
    return adapters[number]


def _logit_bias(inputs: Arrays) -> dict[int, float]:
    ids = inputs.get("conch_logit_bias_ids", np.empty(0)).ravel().tolist()
    values = inputs.get("conch_logit_bias_values", np.empty(0)).ravel().tolist()
    if len(ids) != len(values):
        raise RequestError(
            f"{len(ids)} `conch_logit_bias_ids` with {len(values)} `conch_logit_bias_values`",
            param="conch_logit_bias_values",
        )
    return dict(zip(ids, values, strict=True))


def _embedding_bias(inputs: Arrays) -> NDArray[np.float32] | None:
    bias = inputs.get("embedding_bias")
    return bias.ravel() if bias is not None and bias.size else None


def _end_ids(inputs: Arrays) -> frozenset[int] | None:
    """None leaves the artifact's own; -1 stands for none at all."""
    for name in ("conch_end_ids", "end_id"):
        if name in inputs and inputs[name].size:
            return frozenset(int(token) for token in inputs[name].ravel()) - {-1}
    return None


def _deadline(inputs: Arrays) -> float | None:
    if "conch_timeout_ms" not in inputs:
        return None
    return time.monotonic() + _integer(inputs, "conch_timeout_ms", 0) / 1000


def _required(inputs: Arrays, name: str) -> int:
    if name not in inputs:
        raise RequestError(f"`{name}` is missing", param=name)
    return _integer(inputs, name, 0)


def _scalar(inputs: Arrays, name: str) -> Any:
    array = inputs[name]
    if array.size != 1:
        raise RequestError(f"`{name}` needs one value, not {array.size}", param=name)
    return array.ravel()[0]


def _integer(inputs: Arrays, name: str, default: int) -> int:
    return int(_scalar(inputs, name)) if name in inputs else default


def _number(inputs: Arrays, name: str, default: float) -> float:
    return float(_scalar(inputs, name)) if name in inputs else default


def _flag(inputs: Arrays, name: str, default: bool = False) -> bool:
    return bool(_scalar(inputs, name)) if name in inputs else default
