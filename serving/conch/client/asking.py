"""Requests to the models of a repository: a generation, a sign of life, a feed, an order about adapters."""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc import service_pb2 as pb

from conch.client.cpp_backend import CppBackend
from conch.client.generation import Sampling
from conch.client.reading import TIMES
from conch.client.wire import Tensors
from conch_build.errors import RequestError

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
_IDS_ONLY = ("top_log_probs", "prompt_log_probs", "priority", "context_only", "context_phase")


def build_request(
    prompt: str | Sequence[int],
    sampling: Sampling,
    *,
    request_id: str,
    streaming: bool,
    feed: tuple[str, int] | None = None,
    backend: CppBackend | None = None,
) -> pb.ModelInferRequest:
    """The request for one generation, whose tokens go to stream number `feed[1]` of the feed `feed[0]`.

    `backend`: the model of token ids is not one of Conch's. Raises RequestError for values that no tensor can hold,
    and UnsupportedError for what the backend lacks.
    """
    if backend is not None and not isinstance(prompt, str):
        sampling = backend.translated(sampling)
    is_text = isinstance(prompt, str)
    if is_text and (given := next((name for name in _IDS_ONLY if getattr(sampling, name)), None)):
        raise RequestError("needs a prompt of token ids", param=given)
    tensors = Tensors("ensemble" if is_text else "tensorrt_llm", request_id)
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
    if sampling.guide is not None:
        for name, text in zip(("guided_decoding_guide_type", "guided_decoding_guide"), sampling.guide, strict=True):
            tensors.texts(name, [text] if text else [])
    if sampling.log_probs:
        tensors.scalar("return_log_probs", "BOOL", True)
        tensors.wanted("output_log_probs")
    if sampling.n > 1:
        tensors.scalar("num_return_sequences", "INT32", sampling.n)
        tensors.wanted("sequence_index")
    if not is_text:
        tensors.scalar("return_perf_metrics", "BOOL", True)
        tensors.wanted("total_draft_tokens", "total_accepted_draft_tokens", *TIMES)
    if backend is None:
        _add_own(tensors, sampling, feed)
    elif not is_text:
        backend.add(tensors, sampling)
    return tensors.request


def _add_own(tensors: Tensors, sampling: Sampling, feed: tuple[str, int] | None) -> None:
    """What Conch's own models take and give beside upstream's tensors."""
    tensors.wanted("conch_finish_reason", "conch_cached_tokens")
    if sampling.end_ids is not None:
        tensors.vector("conch_end_ids", "INT32", sampling.end_ids or [-1])
    if sampling.logit_bias:
        tensors.vector("conch_logit_bias_ids", "INT32", sampling.logit_bias.keys())
        tensors.vector("conch_logit_bias_values", "FP32", sampling.logit_bias.values())
    if feed is not None:
        tensors.texts("conch_feed", [feed[0]])
        tensors.scalar("conch_feed_stream", "INT32", feed[1])
        tensors.scalar("return_num_output_tokens", "BOOL", True)
        tensors.wanted("num_output_tokens")
    if sampling.top_log_probs:
        tensors.scalar("conch_top_log_probs", "INT32", sampling.top_log_probs)
        tensors.wanted("conch_top_ids", "conch_top_log_probs")
    if sampling.prompt_log_probs:
        tensors.scalar("conch_return_prompt_log_probs", "BOOL", True)
        tensors.wanted("conch_prompt_log_probs", "conch_prompt_top_ids", "conch_prompt_top_log_probs")
    if sampling.context_only:
        tensors.scalar("conch_context_only", "BOOL", True)
        tensors.wanted("context_phase_params")
    if sampling.context_phase:
        tensors.vector("context_phase_params", "UINT8", sampling.context_phase)
    if sampling.priority:
        tensors.scalar("conch_priority", "INT32", sampling.priority)


def build_probe(request_id: str) -> pb.ModelInferRequest:
    """A stop request for an unknown id: it crosses Triton, its stub and the engine, and costs no token."""
    tensors = Tensors("tensorrt_llm", request_id)
    tensors.vector("input_ids", "INT32", [0])
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.scalar("stop", "BOOL", True)
    return tensors.request


def build_feed(name: str) -> pb.ModelInferRequest:
    """Opens a feed; it lasts until it is cancelled."""
    tensors = Tensors("tensorrt_llm", name)
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.texts("conch_feed", [name])
    tensors.wanted("conch_feed_streams", "conch_feed_counts", "output_ids")
    return tensors.request


def build_adapter_command(command: str, lora_task_id: int, request_id: str) -> pb.ModelInferRequest:
    """An order about LoRA adapters: `list`, `load` or `unload`."""
    tensors = Tensors("tensorrt_llm", request_id)
    tensors.scalar("input_lengths", "INT32", 1)
    tensors.scalar("request_output_len", "INT32", 1)
    tensors.scalar("lora_task_id", "UINT64", lora_task_id)
    tensors.texts("conch_adapter_command", [command])
    tensors.wanted("conch_adapters")
    return tensors.request
