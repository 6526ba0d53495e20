"""The contract's tensors as Triton's protobuf messages: requests built, responses read.

Written with the generated messages and raw bytes instead of `InferInput`/`InferResult`: reading a response
runs once a token. Knows nothing of channels.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from conch.client.errors import from_message
from conch.client.generation import Delta, Sampling
from conch_build.errors import CancelledError, DeadlineError, RequestError, ServiceError

STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA_METHOD = "/inference.GRPCInferenceService/ModelMetadata"
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A restarted server is found again within a second, not after gRPC's own two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

# Sampling field -> tensor of `tensorrt_llm`, tensor of `ensemble`, type. None on our side is not sent.
_SCALARS = (
    ("temperature", "temperature", "temperature", "FP32"),
    ("top_k", "runtime_top_k", "top_k", "INT32"),
    ("top_p", "runtime_top_p", "top_p", "FP32"),
    ("min_p", "conch_min_p", "conch_min_p", "FP32"),
    ("repetition_penalty", "repetition_penalty", "repetition_penalty", "FP32"),
    ("presence_penalty", "presence_penalty", "presence_penalty", "FP32"),
    ("frequency_penalty", "frequency_penalty", "frequency_penalty", "FP32"),
    ("seed", "seed", "seed", "UINT64"),
    ("min_tokens", "min_tokens", "min_tokens", "INT32"),
    ("lora_task_id", "lora_task_id", "lora_task_id", "UINT64"),
)
_FORMATS = {"FP32": "f", "INT32": "i", "UINT64": "Q", "BOOL": "?"}
_LIMITS = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1)}


def build_request(
    prompt: str | Sequence[int],
    sampling: Sampling,
    *,
    request_id: str,
    streaming: bool,
    feed: tuple[str, int] | None = None,
) -> pb.ModelInferRequest:
    """The request for one generation, whose tokens go to stream number `feed[1]` of the feed `feed[0]`.

    Raises RequestError for values that no tensor can hold.
    """
    is_text = isinstance(prompt, str)
    tensors = _Tensors("ensemble" if is_text else "tensorrt_llm", request_id)
    if isinstance(prompt, str):
        tensors.texts("text_input", [prompt])
        tensors.scalar("max_tokens", "INT32", sampling.max_tokens)
        tensors.scalar("stream", "BOOL", streaming)
        tensors.texts("stop_words", sampling.stop_words)
        tensors.texts("bad_words", sampling.bad_words)
        tensors.wanted("text_output")
    else:
        tensors.vector("input_ids", "INT32", prompt)
        tensors.scalar("input_lengths", "INT32", len(prompt))
        tensors.scalar("request_output_len", "INT32", sampling.max_tokens)
        tensors.scalar("streaming", "BOOL", streaming)
        tensors.words("stop_words_list", sampling.stop_words)
        tensors.words("bad_words_list", sampling.bad_words)
        tensors.wanted("output_ids")
    tensors.scalar("exclude_input_in_output", "BOOL", True)
    for field, token_name, text_name, datatype in _SCALARS:
        value = getattr(sampling, field)
        if value is not None:
            tensors.scalar(text_name if is_text else token_name, datatype, value)
    if sampling.end_ids is not None:
        tensors.vector("conch_end_ids", "INT32", sampling.end_ids or [-1])
    if sampling.logit_bias:
        tensors.vector("conch_logit_bias_ids", "INT32", sampling.logit_bias.keys())
        tensors.vector("conch_logit_bias_values", "FP32", sampling.logit_bias.values())
    tensors.wanted("conch_finish_reason", "conch_cached_tokens")
    if feed is not None:
        tensors.texts("conch_feed", [feed[0]])
        tensors.scalar("conch_feed_stream", "INT32", feed[1])
        tensors.scalar("return_num_output_tokens", "BOOL", True)
        tensors.wanted("num_output_tokens")
    if sampling.log_probs:
        tensors.scalar("return_log_probs", "BOOL", True)
        tensors.wanted("output_log_probs")
    if sampling.top_log_probs:
        if is_text:
            raise RequestError("needs a prompt of token ids", param="top_log_probs")
        tensors.scalar("conch_top_log_probs", "INT32", sampling.top_log_probs)
        tensors.wanted("conch_top_ids", "conch_top_log_probs")
    return tensors.request


def build_probe(request_id: str) -> pb.ModelInferRequest:
    """A stop request for an unknown id: it crosses Triton, its stub and the engine, and costs no token."""
    tensors = _Tensors("tensorrt_llm", request_id)
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.scalar("stop", "BOOL", True)
    return tensors.request


def build_feed(name: str) -> pb.ModelInferRequest:
    """Opens a feed; it lasts until it is cancelled."""
    tensors = _Tensors("tensorrt_llm", name)
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.texts("conch_feed", [name])
    tensors.wanted("conch_feed_streams", "conch_feed_counts", "output_ids")
    return tensors.request


def read_feed(message: pb.ModelStreamInferResponse) -> Iterable[tuple[int, list[int]]]:
    """The streams that a feed's message has tokens for, and their tokens. Raises the error that it carries."""
    check(message)
    raw = message.infer_response.raw_output_contents
    if not raw:  # the last one, of a feed that was left
        return
    found = {output.name: raw[index] for index, output in enumerate(message.infer_response.outputs)}
    streams = memoryview(found["conch_feed_streams"]).cast("i").tolist()
    counts = memoryview(found["conch_feed_counts"]).cast("i").tolist()
    tokens = memoryview(found["output_ids"]).cast("i").tolist()
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        yield stream, tokens[start : start + count]
        start += count


def build_adapter_command(command: str, lora_task_id: int, request_id: str) -> pb.ModelInferRequest:
    """An order about LoRA adapters: `list`, `load` or `unload`."""
    tensors = _Tensors("tensorrt_llm", request_id)
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.scalar("lora_task_id", "UINT64", lora_task_id)
    tensors.texts("conch_adapter_command", [command])
    tensors.wanted("conch_adapters")
    return tensors.request


def read_adapters(message: pb.ModelStreamInferResponse) -> list[dict[str, Any]]:
    """What the answer to `build_adapter_command` tells of each adapter. Raises the error that it carries."""
    check(message)
    raw = memoryview(message.infer_response.raw_output_contents[0])
    adapters = []
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        adapters.append(json.loads(bytes(raw[4 : 4 + size])))
        raw = raw[4 + size :]
    return adapters


def check(message: pb.ModelStreamInferResponse) -> None:
    """Raise the error that a response carries, if any."""
    if message.error_message:
        raise from_message(message.error_message)


class Reader:
    """Reads one stream's responses in order, and knows whether the final one has come.

    After the final one the stream is to be read to its end: Triton keeps for ever what it holds of a request
    that is cancelled between the two.
    """

    __slots__ = ("finished", "total")

    def __init__(self) -> None:
        self.finished = False
        self.total = 0
        """Tokens of the whole answer, where they were asked for; known with the final response."""

    def read(self, message: pb.ModelStreamInferResponse) -> Delta:
        """The delta in a response. Raises the error that it carries."""
        self.finished = bool(message.error_message)
        check(message)
        response = message.infer_response
        raw = response.raw_output_contents
        found = {output.name: raw[index] for index, output in enumerate(response.outputs)}
        reason = _text(found.get("conch_finish_reason", b"")) or None
        self.finished = reason is not None
        if reason not in (None, "stop", "length"):
            raise _ended(reason)
        ids = found.get("output_ids")
        text = found.get("text_output")
        log_probs = found.get("output_log_probs")
        top_ids = found.get("conch_top_ids")
        cached = found.get("conch_cached_tokens")
        if self.finished and "num_output_tokens" in found:
            self.total = memoryview(found["num_output_tokens"]).cast("i")[0]
        return Delta(
            tokens=tuple(memoryview(ids).cast("i")) if ids else (),
            text=None if text is None else _text(text),
            finish_reason=reason,
            log_probs=None if log_probs is None else tuple(memoryview(log_probs).cast("f")),
            top=None if top_ids is None else _top(response, top_ids, found["conch_top_log_probs"]),
            cached_tokens=memoryview(cached).cast("i")[0] if cached else 0,
        )

    def end(self) -> None:
        """The stream has closed. Raises ServiceError unless it was complete."""
        if not self.finished:
            raise cut_short()


def cut_short() -> ServiceError:
    return ServiceError("the stream ended before its final response", fix="The server's log says why.")


def _ended(reason: str | None) -> ServiceError:
    if reason == "cancelled":
        return CancelledError("the request was cancelled")
    if reason == "deadline":
        return DeadlineError("the request's deadline passed before the answer was complete")
    return ServiceError("the engine failed while it answered", fix="The server's log says why.")


def _text(raw: bytes) -> str:
    """The only element of a BYTES tensor: four bytes of length, then UTF-8."""
    return raw[4:].decode()


def _top(response: pb.ModelInferResponse, ids: bytes, log_probs: bytes) -> tuple[tuple[tuple[int, float], ...], ...]:
    width = next(output.shape[-1] for output in response.outputs if output.name == "conch_top_ids")
    pairs = list(zip(memoryview(ids).cast("i"), memoryview(log_probs).cast("f"), strict=True))
    return tuple(tuple(pairs[start : start + width]) for start in range(0, len(pairs), width or 1))


class _Tensors:
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


def _packed(name: str, datatype: str, values: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)
    except (struct.error, OverflowError):
        limits = _LIMITS.get(datatype)
        within = f"whole numbers from {limits[0]} to {limits[1]}" if limits else "numbers"
        raise RequestError(f"`{name}` takes {within}", param=name) from None
