"""The `preprocessing` model: a prompt and its words become token ids. Knows nothing of generation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb
from numpy.typing import NDArray
from tokenizers import Tokenizer

from conch.backend.arrays import Arrays, arrays, parameters, strings, tagged
from conch.backend.ends import Ends
from conch.backend.words import bias_vector, encode_words, word_list
from conch_build.errors import ConchError, RequestError, UnsupportedError

_NEEDS_OTHER_MODELS = ("DECODER_QUERY", "IMAGE_BYTES", "IMAGE_URL", "IMAGE_SIZES", "VIDEO_BYTES")
_PASSED_ON = {
    "REQUEST_OUTPUT_LEN": "REQUEST_OUTPUT_LEN",
    "END_ID": "OUT_END_ID",
    "PAD_ID": "OUT_PAD_ID",
    "PROMPT_TABLE_EXTRA_ID": "OUT_PROMPT_TABLE_EXTRA_IDS",
}


class TextInModel:
    """Triton's interface."""

    def initialize(self, args: dict[str, str]) -> None:
        config = parameters(args)
        self._tokenizer = Tokenizer.from_file(str(Path(config["tokenizer_dir"]) / "tokenizer.json"))
        self._add_special_tokens = config["add_special_tokens"] == "true"
        engine = json.loads((Path(config["engine_dir"]) / "engine.json").read_text(encoding="utf-8"))
        self._vocab_size = int(engine["vocab_size"])
        self._ends = Ends.of(engine)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            tensors = self._encode(arrays(request))
        except ConchError as error:
            return pb.InferenceResponse(output_tensors=[], error=pb.TritonError(tagged(error)))
        wanted = set(request.requested_output_names())
        return pb.InferenceResponse([pb.Tensor(name, array) for name, array in tensors.items() if name in wanted])

    def _encode(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        for name in _NEEDS_OTHER_MODELS:
            if name in inputs and any(inputs[name].ravel()):
                raise UnsupportedError(f"`{name}`: this model takes text prompts only", param=name)
        queries = strings(inputs, "QUERY")
        if len(queries) != 1:
            raise RequestError(f"`QUERY` needs one prompt, not {len(queries)}", param="QUERY")
        ids = self._tokenizer.encode(queries[0], add_special_tokens=self._add_special_tokens).ids
        weights = inputs.get("EMBEDDING_BIAS_WEIGHTS", np.empty(0)).ravel().tolist()
        bias = bias_vector(strings(inputs, "EMBEDDING_BIAS_WORDS"), weights, self._tokenizer, self._vocab_size)
        ends = Ends() if "END_ID" in inputs else self._ends
        return {
            "INPUT_ID": np.array([ids], np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
            "STOP_WORDS_IDS": self._words(inputs, "STOP_WORDS_DICT", ends.further),
            "BAD_WORDS_IDS": self._words(inputs, "BAD_WORDS_DICT"),
            "EMBEDDING_BIAS": bias[None],
            **ends.tensors(),
            **{output: inputs[name] for name, output in _PASSED_ON.items() if name in inputs},
        }

    def _words(self, inputs: Arrays, name: str, further: Sequence[int] = ()) -> NDArray[np.int32]:
        words = word_list(strings(inputs, name), self._tokenizer)
        return encode_words([*words, *((token,) for token in further)])[None]
