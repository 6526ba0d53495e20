"""Calls to a running Triton as its users make them, with tritonclient's gRPC streams."""

from __future__ import annotations

import queue
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as triton

_TYPES = {
    **dict.fromkeys(("input_lengths", "request_output_len", "max_tokens", "min_tokens", "end_id"), np.int32),
    **dict.fromkeys(("input_ids", "runtime_top_k", "top_k", "beam_width", "num_return_sequences"), np.int32),
    **dict.fromkeys(("conch_end_ids", "conch_logit_bias_ids", "conch_top_log_probs"), np.int32),
    **dict.fromkeys(("conch_timeout_ms",), np.int32),
    **dict.fromkeys(("temperature", "runtime_top_p", "top_p", "conch_min_p", "repetition_penalty"), np.float32),
    **dict.fromkeys(("conch_logit_bias_values", "embedding_bias_weights", "len_penalty"), np.float32),
    **dict.fromkeys(("seed", "lora_task_id"), np.uint64),
    **dict.fromkeys(("streaming", "stream", "stop", "return_log_probs", "return_perf_metrics"), np.bool_),
    **dict.fromkeys(("conch_return_prompt_log_probs",), np.bool_),
    **dict.fromkeys(("exclude_input_in_output", "return_context_logits"), np.bool_),
    **dict.fromkeys(("text_input", "stop_words", "bad_words", "embedding_bias_words"), np.object_),
    **dict.fromkeys(("guided_decoding_guide_type", "guided_decoding_guide"), np.object_),
}

_METRICS_PERIOD = 0.3  # the page lags behind the engine by this at most


def tensor(name: str, value: Any) -> triton.InferInput:
    """A [1, n] tensor of the type that the contract gives the name."""
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.array([text.encode() for text in array.ravel()], np.object_)
    array = array.astype(_TYPES.get(name, array.dtype))
    array = array.reshape(1, -1) if array.ndim < 2 else array
    made = triton.InferInput(name, list(array.shape), triton_type(array))
    made.set_data_from_numpy(array)
    return made


def triton_type(array: np.ndarray) -> str:
    from tritonclient.utils import np_to_triton_dtype

    return str(np_to_triton_dtype(array.dtype))


@dataclass
class Reply:
    """What came back on one stream, in order."""

    responses: list[triton.InferResult] = field(default_factory=list)
    error: str | None = None

    def array(self, name: str, index: int = -1) -> np.ndarray | None:
        found: np.ndarray | None = self.responses[index].as_numpy(name)
        return found

    @property
    def ids(self) -> list[int]:
        return [token for response in self.responses for token in response.as_numpy("output_ids").ravel().tolist()]

    @property
    def texts(self) -> list[str]:
        return [response.as_numpy("text_output").ravel()[0].decode() for response in self.responses]

    @property
    def finish_reason(self) -> str:
        reason = self.array("conch_finish_reason")
        assert reason is not None
        text: str = reason.ravel()[0].decode()
        return text


class Stream:
    """One open gRPC stream with one request on it."""

    def __init__(self, url: str, model: str, inputs: dict[str, Any], **options: Any) -> None:
        self._queue: queue.Queue[tuple[triton.InferResult | None, Exception | None]] = queue.Queue()
        self._client = triton.InferenceServerClient(url)
        self._client.start_stream(lambda result, error: self._queue.put((result, error)))
        self.send(model, inputs, **options)

    def send(self, model: str, inputs: dict[str, Any], outputs: list[str] | None = None, **options: Any) -> None:
        self._client.async_stream_infer(
            model,
            [tensor(name, value) for name, value in inputs.items()],
            outputs=[triton.InferRequestedOutput(name) for name in outputs] if outputs else None,
            enable_empty_final_response=True,
            **options,
        )

    def next(self, seconds: float = 30) -> triton.InferResult:
        result, error = self._queue.get(timeout=seconds)
        if error is not None:
            raise error
        return result

    def read(self) -> Reply:
        """Everything up to the response that is marked as the last."""
        reply = Reply()
        while True:
            try:
                result = self.next()
            except Exception as error:
                reply.error = str(error)
                return reply
            reply.responses.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return reply

    def close(self, *, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()


@contextmanager
def stream(url: str, model: str, inputs: dict[str, Any], **options: Any) -> Iterator[Stream]:
    opened = Stream(url, model, inputs, **options)
    try:
        yield opened
    finally:
        opened.close(cancel=True)


def ask(url: str, model: str, inputs: dict[str, Any], **options: Any) -> Reply:
    """One request, read to its end."""
    with stream(url, model, inputs, **options) as opened:
        return opened.read()


def tokens(prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    """The inputs of `tensorrt_llm`."""
    return {"input_ids": prompt, "input_lengths": len(prompt), "request_output_len": count, **more}


def metric(url: str, name: str, label: str) -> float:
    """One value of the metrics page, found by its family and one of its labels."""
    with urllib.request.urlopen(url, timeout=10) as page:
        text = page.read().decode()
    found = re.search(rf"^{name}{{[^}}]*{re.escape(label)}[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} with {label}"
    return float(found[1])


def wait_until_idle(url: str, seconds: float = 5) -> None:
    """Until the engine holds no request and no block."""
    time.sleep(_METRICS_PERIOD)
    end = time.monotonic() + seconds
    while any(
        metric(url, family, label)
        for family, label in (
            ("nv_trt_llm_request_metrics", 'request_type="active"'),
            ("nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="used"'),
        )
    ):
        assert time.monotonic() < end, "requests or blocks are left"
        time.sleep(0.05)
