"""Tensors of the BLS: each goes to a model that has it, under that model's name; nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.backend.bls_tensors import checked, to_engine, to_postprocessing, to_preprocessing
from conch_build.errors import RequestError, UnsupportedError
from tests.model_repo.plans import packed, plan_for

ONE = np.array([[1]], np.int32)
ASKED = {"text_input": np.array([[b"hi"]], np.object_), "max_tokens": ONE}


@pytest.fixture(scope="module", params=["openvino", "tensorrt"])
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out: Path = tmp_path_factory.mktemp("repository")
    return packed(out, plan_for(request.param))


def names(tensors: Any) -> set[str]:
    return {tensor.name for tensor in tensors}


def test_every_input_reaches_a_model_that_has_it(repository: dict[str, Any]) -> None:
    pictures = {name for name in names(repository["tensorrt_llm_bls"].input) if name.startswith(("image", "video"))}
    for name in names(repository["tensorrt_llm_bls"].input) - pictures - {"num_draft_tokens", "use_draft_logits"}:
        first, second = to_preprocessing({name: ONE}), to_engine({name: ONE}, {})
        assert len(first) + len(second) == 1, name
        assert set(first) <= names(repository["preprocessing"].input)
        assert set(second) <= names(repository["tensorrt_llm"].input)


def test_what_preprocessing_gives_reaches_the_engine(repository: dict[str, Any]) -> None:
    given = dict.fromkeys(names(repository["preprocessing"].output), ONE)
    asked = to_engine({}, given)
    assert set(asked) <= names(repository["tensorrt_llm"].input)
    assert {"input_ids", "input_lengths", "request_output_len", "end_id", "stop_words_list"} <= set(asked)


def test_outputs_are_those_of_the_engine_and_the_text(repository: dict[str, Any]) -> None:
    assert names(repository["tensorrt_llm_bls"].output) - names(repository["tensorrt_llm"].output) == {"text_output"}


def test_empty_tensors_say_nothing_to_the_engine() -> None:
    assert to_engine({}, {"EMBEDDING_BIAS": np.empty((1, 0), np.float32), "INPUT_ID": ONE}) == {"input_ids": ONE}


def test_scalars_that_triton_has_reshaped_get_their_dimension_back() -> None:
    found = checked({**ASKED, "return_log_probs": np.array([True])})
    assert found["return_log_probs"].shape == (1, 1)


def test_pictures_and_batches_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="`video_bytes_input`: this model takes text prompts only"):
        checked({**ASKED, "video_bytes_input": np.zeros((1, 1, 1, 1, 1), np.uint8)})
    with pytest.raises(RequestError, match="`text_input` needs one value, not 2"):
        checked({**ASKED, "text_input": np.array([[b"one"], [b"two"]], np.object_)})
    with pytest.raises(RequestError, match="`max_tokens` needs one value, not 0"):
        checked({"text_input": ASKED["text_input"]})


def test_a_piece_of_a_stream_says_what_was_before_it() -> None:
    ids, length = np.array([[[5, 6]]], np.int32), np.array([[2]], np.int32)
    assert set(to_postprocessing(ids, length)) == {"TOKENS_BATCH", "SEQUENCE_LENGTH"}
    piece = to_postprocessing(ids, length, [3, 4])
    assert piece["conch_previous_ids"].tolist() == [[3, 4]]
    assert piece["conch_finish_reason"].item() == b""
    assert to_postprocessing(ids, length, [], last=True)["conch_finish_reason"].item() == b"stop"
