"""The requests by which a server is judged: one that generates a token, and one that only asks for a sign of life.

Knows the tensors of the model `tensorrt_llm`; sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.life import means_dead

_TOKENS = {"input_ids": [0], "input_lengths": 1, "request_output_len": 1}


@dataclass(frozen=True)
class Probe:
    """Bodies of HTTP requests to `tensorrt_llm`."""

    generates: Mapping[str, Any]
    """Is ready, once this is answered."""
    asks: Mapping[str, Any]
    """A stop request that concerns nobody: it crosses Triton and the engine, and costs no token."""
    strict: bool = True
    """False: the engine may answer such a stop request with an error and yet live."""

    def means_dead(self, answer: str) -> bool:
        """Whether an error that `asks` was answered with means that there is no engine."""
        return self.strict or means_dead(answer)


OWN_PROBE = Probe({**_TOKENS, "end_id": -1}, {**_TOKENS, "stop": True})
"""Of Conch's python models, whichever engine they are around."""

CPP_PROBE = Probe({**_TOKENS, "end_id": -1}, {**_TOKENS, "stop": True}, strict=False)
"""Of TensorRT-LLM's C++ backend."""
