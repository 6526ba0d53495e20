"""Responses of the models of a repository, read in order."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from conch.client.errors import from_message
from conch.client.generation import Delta, TopLogProbs
from conch.client.wire import number_in, tensors_of, text_in
from conch_build.errors import CancelledError, DeadlineError, ServiceError

TIMES = ("arrival_time_ns", "first_token_time_ns", "last_token_time_ns")
"""Of a request in its engine, by the engine's own clock."""


def prefill_share(found: Mapping[str, bytes]) -> float | None:
    """Of a request's time in its engine, what came before its first token; None where the engine does not tell."""
    if any(name not in found for name in TIMES):
        return None
    arrival, first, last = (memoryview(found[name]).cast("q")[0] for name in TIMES)
    return (first - arrival) / (last - arrival) if 0 < arrival <= first <= last != arrival else None


def check(message: pb.ModelStreamInferResponse) -> None:
    """Raise the error that a response carries, if any."""
    if message.error_message:
        raise from_message(message.error_message)


class Reader:
    """Reads one stream's responses in order, and knows whether the final one has come.

    After the final one the stream is to be read to its end: Triton keeps for ever what it holds of a request
    that is cancelled between the two.
    """

    __slots__ = ("_open", "finished", "total")

    def __init__(self, answers: int = 1) -> None:
        self.finished = False
        self._open = answers
        self.total = 0
        """Tokens of the whole answer, where they were asked for; known with the final response."""

    def read(self, message: pb.ModelStreamInferResponse) -> Delta:
        """The delta in a response. Raises the error that it carries."""
        self.finished = bool(message.error_message)
        check(message)
        response = message.infer_response
        found = tensors_of(response)
        reason = text_in(found.get("conch_finish_reason", b"")) or None
        self._open -= reason is not None
        self.finished = not self._open
        if reason not in (None, "stop", "length"):
            raise _ended(reason)
        ids = found.get("output_ids")
        text = found.get("text_output")
        log_probs = found.get("output_log_probs")
        prompt = found.get("conch_prompt_log_probs")
        if self.finished and "num_output_tokens" in found:
            self.total = memoryview(found["num_output_tokens"]).cast("i")[0]
        return Delta(
            tokens=tuple(memoryview(ids).cast("i")) if ids else (),
            text=None if text is None else text_in(text),
            finish_reason=reason,
            log_probs=None if log_probs is None else tuple(memoryview(log_probs).cast("f")),
            top=_top(response, found, "conch_top") if "conch_top_ids" in found else None,
            cached_tokens=number_in(found, "conch_cached_tokens"),
            index=number_in(found, "sequence_index"),
            prompt_log_probs=None if prompt is None else tuple(memoryview(prompt).cast("f")),
            prompt_top=None if prompt is None else _top(response, found, "conch_prompt_top"),
            draft_tokens=number_in(found, "total_draft_tokens"),
            accepted_tokens=number_in(found, "total_accepted_draft_tokens"),
            context_phase=found.get("context_phase_params", b""),
            prefill_share=prefill_share(found),
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


def read_feed(message: pb.ModelStreamInferResponse) -> Iterable[tuple[int, list[int]]]:
    """The streams that a feed's message has tokens for, and their tokens. Raises the error that it carries."""
    check(message)
    found = tensors_of(message.infer_response)
    if not found:  # the last one, of a feed that was left
        return
    streams = memoryview(found["conch_feed_streams"]).cast("i").tolist()
    counts = memoryview(found["conch_feed_counts"]).cast("i").tolist()
    tokens = memoryview(found["output_ids"]).cast("i").tolist()
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        yield stream, tokens[start : start + count]
        start += count


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


def _top(response: pb.ModelInferResponse, found: Mapping[str, bytes], name: str) -> TopLogProbs:
    ids, log_probs = found[f"{name}_ids"], found[f"{name}_log_probs"]
    width = next(output.shape[-1] for output in response.outputs if output.name == f"{name}_ids")
    pairs = list(zip(memoryview(ids).cast("i"), memoryview(log_probs).cast("f"), strict=True))
    return tuple(tuple(pairs[start : start + width]) for start in range(0, len(pairs), width or 1))
