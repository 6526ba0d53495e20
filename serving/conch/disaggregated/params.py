"""`context_phase_params`: opaque to everybody between the two engines, as TensorRT-LLM's are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from conch_build.errors import RequestError

TOKEN_BYTES = 32


@dataclass(frozen=True)
class ContextPhaseParams:
    """Where a frame is to be had: who knows the token may have it."""

    host: str
    port: int
    token: str
    """Hex, 32 bytes."""
    size: int
    """Of the frame, in bytes."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ContextPhaseParams:
        """Raises RequestError."""
        try:
            told = json.loads(data)
            params = cls(str(told["host"]), int(told["port"]), str(told["token"]), int(told["size"]))
            if len(bytes.fromhex(params.token)) != TOKEN_BYTES or not (0 < params.port < 1 << 16 and params.size > 0):
                raise ValueError("out of bounds")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            text = f"`context_phase_params` are no engine's of this kind: {error}"
            raise RequestError(text, param="context_phase_params", code="invalid_value") from None
        return params
