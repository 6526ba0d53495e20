"""Triton's protobuf messages: tensors put in and taken out.

Written with the generated messages and raw bytes instead of `InferInput`/`InferResult`: reading a response
runs once a token. Knows nothing of channels, and nothing of what the tensors mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from conch_build.errors import RequestError

STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA_METHOD = "/inference.GRPCInferenceService/ModelMetadata"
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A restarted server is found again within a second, not after gRPC's own two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_FORMATS = {"FP32": "f", "INT32": "i", "UINT64": "Q", "BOOL": "?", "UINT8": "B"}
_LIMITS = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1), "UINT8": (0, 255)}


class Tensors:
    """A request that grows tensor by tensor. All shapes start with the batch of one."""

    def __init__(self, model: str, request_id: str) -> None:
        self.request = pb.ModelInferRequest(model_name=model, id=request_id)

    def scalar(self, name: str, datatype: str, value: float) -> None:
        self._add(name, datatype, (1, 1), _packed(name, datatype, [value]))

    def vector(self, name: str, datatype: str, values: Iterable[float]) -> None:
        values = list(values)
        self._add(name, datatype, (1, len(values)), _packed(name, datatype, values))

    def texts(self, name: str, values: Sequence[Any]) -> None:
        if values:
            try:
                encoded = [value.encode() for value in values]
            except UnicodeEncodeError:
                raise RequestError(f"`{name}` holds half a surrogate pair, which is no text", param=name) from None
            raw = b"".join(struct.pack("<I", len(value)) + value for value in encoded)
            self._add(name, "BYTES", (1, len(values)), raw)

    def words(self, name: str, words: Sequence[Any]) -> None:
        """Row 0: the ids of all words, end to end. Row 1: where each word ends, padded with -1."""
        if words:
            if not all(words):
                raise RequestError(f"`{name}` holds an empty word", param=name)
            flat = [token for word in words for token in word]
            ends = list(accumulate(len(word) for word in words))
            ends += [-1] * (len(flat) - len(ends))
            self._add(name, "INT32", (1, 2, len(flat)), _packed(name, "INT32", flat + ends))

    def wanted(self, *names: str) -> None:
        for name in names:
            self.request.outputs.add(name=name)

    def _add(self, name: str, datatype: str, shape: Sequence[int], raw: bytes) -> None:
        self.request.inputs.add(name=name, datatype=datatype, shape=shape)
        self.request.raw_input_contents.append(raw)


def tensors_of(response: pb.ModelInferResponse) -> dict[str, bytes]:
    """The outputs of a response by name, as raw bytes."""
    raw = response.raw_output_contents
    return {output.name: raw[index] for index, output in enumerate(response.outputs)}


def text_in(raw: bytes) -> str:
    """The only element of a BYTES tensor: four bytes of length, then UTF-8."""
    return raw[4:].decode()


def number_in(found: Mapping[str, bytes], name: str) -> int:
    raw = found.get(name)
    number: int = memoryview(raw).cast("i")[0] if raw else 0
    return number


def _packed(name: str, datatype: str, values: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)
    except (struct.error, OverflowError):
        limits = _LIMITS.get(datatype)
        within = f"whole numbers from {limits[0]} to {limits[1]}" if limits else "numbers"
        raise RequestError(f"`{name}` takes {within}", param=name) from None
