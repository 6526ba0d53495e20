"""The `postprocessing` model: token ids become the text that they settle. It keeps nothing between requests.

With `conch_previous_ids` and `conch_finish_reason` the ids are one piece of a stream; without them, a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from conch.backend.arrays import Arrays, arrays, parameters
from conch.text import IdDecoder, stable_text


class TextOutModel:
    """Triton's interface."""

    def initialize(self, args: dict[str, str]) -> None:
        config = parameters(args)
        self._decoder = IdDecoder.load(
            config["tokenizer_dir"], skip_special_tokens=config["skip_special_tokens"] == "true"
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        text = self._text(arrays(request))
        return pb.InferenceResponse([pb.Tensor("OUTPUT", np.array([[text.encode("utf-8")]], np.object_))])

    def _text(self, inputs: Arrays) -> str:
        length = int(inputs["SEQUENCE_LENGTH"].ravel()[0])
        ids = inputs["TOKENS_BATCH"].ravel()[:length].tolist()
        previous = inputs.get("conch_previous_ids", np.empty(0, np.int32)).ravel().tolist()
        reason = inputs.get("conch_finish_reason")
        last = reason is None or reason.ravel()[0] != b""
        return stable_text(previous, ids, self._decoder, last=last)
