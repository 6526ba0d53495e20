"""The ids that end an answer, as tensors for an engine which knows of none but those that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ends:
    """Nothing of it: the engine knows its own, or the request names one."""

    first: int | None = None
    further: tuple[int, ...] = ()
    """A request has one end id; these become stop words."""
    pad: int | None = None

    @classmethod
    def of(cls, engine: Mapping[str, Any]) -> Ends:
        """From `engine.json`. TensorRT-LLM's C++ backend is such an engine."""
        ids = engine["end_ids"]
        if engine["backend"] != "tensorrt" or not ids:
            return cls()
        return cls(ids[0], tuple(ids[1:]), ids[0] if engine["pad_id"] is None else engine["pad_id"])

    def tensors(self) -> dict[str, NDArray[np.int32]]:
        """Outputs of `preprocessing`."""
        ids = {"OUT_END_ID": self.first, "OUT_PAD_ID": self.pad}
        return {name: np.array([[token]], np.int32) for name, token in ids.items() if token is not None}
