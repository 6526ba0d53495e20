"""The tensors of `tensorrt_llm_bls` and those of the models that it asks. Plain arrays: knows nothing of Triton."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.backend.arrays import Arrays
from conch_build.errors import RequestError, UnsupportedError

Tensors = dict[str, NDArray[Any]]

_TO_PREPROCESSING = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
_FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
PREPROCESSED = tuple(_FROM_PREPROCESSING)
"""What is wanted of `preprocessing`."""

_RENAMED = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    "prompt_table_extra_id": "prompt_table_extra_ids",
}
_OWN = frozenset({"num_draft_tokens", "use_draft_logits"})
_PICTURES = ("image_input", "image_bytes_input", "image_url_input", "image_sizes_input", "video_bytes_input")


def checked(inputs: Arrays) -> Tensors:
    """The inputs, each with its leading dimension of one. Raises RequestError and UnsupportedError by name."""
    for name in _PICTURES:
        if name in inputs and inputs[name].size:
            raise UnsupportedError(f"`{name}`: this model takes text prompts only", param=name, fix="Leave it out.")
    for name in ("text_input", "max_tokens"):
        if name not in inputs or inputs[name].size != 1:
            count = inputs[name].size if name in inputs else 0
            raise RequestError(f"`{name}` needs one value, not {count}", param=name)
    return {name: array.reshape(1, -1) if array.ndim == 1 else array for name, array in inputs.items()}


def to_preprocessing(inputs: Arrays) -> Tensors:
    return {name: inputs[ours] for ours, name in _TO_PREPROCESSING.items() if ours in inputs}


def to_engine(inputs: Arrays, preprocessed: Arrays) -> Tensors:
    """What `tensorrt_llm` gets: ids and words, and whatever of the inputs is its own. Empty tensors say nothing."""
    passed = {
        _RENAMED.get(name, name): array
        for name, array in inputs.items()
        if name not in _TO_PREPROCESSING and name not in _OWN
    }
    encoded = {name: preprocessed[theirs] for theirs, name in _FROM_PREPROCESSING.items() if theirs in preprocessed}
    return {name: array for name, array in {**encoded, **passed}.items() if array.size}


def to_postprocessing(
    ids: NDArray[Any], lengths: NDArray[Any], previous: Iterable[int] | None = None, *, last: bool = False
) -> Tensors:
    """`ids` [1, beams, n]; `previous`: those before them in a stream, None when they are a whole."""
    tensors = {"TOKENS_BATCH": ids, "SEQUENCE_LENGTH": lengths}
    if previous is not None:
        reason = b"stop" if last else b""
        tensors["conch_finish_reason"] = np.array([[reason]], np.object_)
        if before := list(previous):
            tensors["conch_previous_ids"] = np.array([before], np.int32)
    return tensors


def flag(inputs: Arrays, name: str) -> bool:
    return name in inputs and bool(inputs[name].any())


def number(inputs: Arrays, name: str, default: int = 0) -> int:
    return int(inputs[name].ravel()[0]) if name in inputs and inputs[name].size else default
