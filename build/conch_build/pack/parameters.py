"""Every parameter of upstream's templates: a function that gives its value, or the reason it is left to its default.

A value of None leaves the parameter out, too: this plan does not ask for it. Knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from conch_build.errors import PlanError
from conch_build.launch.arrangement import DRAFT, TARGET
from conch_build.manifest import ENGINE_DIR, LORA_DIR, TOKENIZER_DIR, XGRAMMAR_FILE
from conch_build.pack import memory
from conch_build.pack.deployment import Deployment

Value = Callable[[Deployment], str | None]
Table = Mapping[str, Value | str]

WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
CANCELLATION_CHECK_MS = "50"
MEDUSA_NODES = 63
"""Of the tree that the C++ backend takes when it is given none."""
BLS_REQUESTS = 28
"""Requests that one instance of `tensorrt_llm_bls` answers at once."""

_NO_BEAMS = "1: no key of the plan asks for beams"
_DECODER_ONLY = "for encoder-decoder models"
_UNMEASURED = "a switch of kernels that only a measurement can decide"
_NO_PICTURES = "for models that see"


def on(value: bool) -> str:
    return "true" if value else "false"


def lookahead_size(max_draft_len: int) -> int:
    """The largest w for which a window, an n-gram and a verification set of w each fit into `max_draft_len`.

    Such a step guesses (w - 2) + (w - 1 + w)(w - 1) tokens. Raises PlanError where not even w = 2 fits.
    """
    size = 1
    while (size - 1) + (2 * size + 1) * size <= max_draft_len:
        size += 1
    if size == 1:
        where = "engine.speculation.max_draft_len"
        raise PlanError(
            f"lookahead guesses 3 tokens a step at least, not {max_draft_len}", where=where, fix="Raise it."
        )
    return size


def _lookahead(deployment: Deployment) -> str | None:
    speculation = deployment.plan.engine.speculation
    if speculation.method != "lookahead":
        return None
    return str(lookahead_size(speculation.max_draft_len))


def _medusa_tree(deployment: Deployment) -> str | None:
    """None: the backend's own. Raises PlanError for an engine that has other room than it needs."""
    speculation = deployment.plan.engine.speculation
    if speculation.method == "medusa" and speculation.max_draft_len != MEDUSA_NODES:
        raise PlanError(
            f"the tree of Medusa's guesses has {MEDUSA_NODES} nodes, not {speculation.max_draft_len}",
            where="engine.speculation.max_draft_len",
            fix=f"Set it to {MEDUSA_NODES}.",
        )
    return None


def _decoding_mode(deployment: Deployment) -> str | None:
    method = deployment.plan.engine.speculation.method
    return method if method in ("medusa", "lookahead") else None


def _nodes(deployment: Deployment) -> str | None:
    return str(deployment.arrangement.nodes) if deployment.arrangement.nodes > 1 else None


def _worker(deployment: Deployment) -> str | None:
    return WORKER if deployment.arrangement.mode == "orchestrator" else None


def _guides(deployment: Deployment) -> bool:
    """Guided decoding excludes speculation; a draft model is not served to anyone but its target."""
    return deployment.model == TARGET and deployment.plan.engine.speculation.method == "none"


def _adapter_rank(deployment: Deployment) -> str | None:
    return str(deployment.plan.engine.lora.max_rank) if deployment.adapters else None


def _prefetched(deployment: Deployment) -> str | None:
    return str(deployment.engine / LORA_DIR) if deployment.adapters else None


PLACEHOLDERS: Mapping[str, Callable[[Deployment], str]] = {
    "triton_max_batch_size": lambda of: str(of.plan.engine.max_batch_size),
    "decoupled_mode": lambda of: "true",
    "max_queue_delay_microseconds": lambda of: "0",
    # Conch's own engine counts its queue itself.
    "max_queue_size": lambda of: "0" if of.plan.engine.backend == "openvino" else str(of.plan.engine.max_queue_size),
    "encoder_input_features_data_type": lambda of: "TYPE_FP16",
    "logits_datatype": lambda of: {"float16": "TYPE_FP16"}.get(
        str(of.plan.engine.build_args.get("logits_dtype")), "TYPE_FP32"
    ),
    "prompt_embedding_table_data_type": lambda of: of.half_type(),
    "triton_backend": lambda of: "tensorrtllm" if of.plan.engine.backend == "tensorrt" else "python",
    "instance_count": lambda of: str(of.plan.serving.triton.instances if of.gpu_groups() else 1),
    "preprocessing_instance_count": lambda of: str(_text_instances(of)),
    "postprocessing_instance_count": lambda of: "1",  # the pieces of a stream are detokenized in their order
    "bls_instance_count": lambda of: str(_bls_instances(of)),
}
"""What is written without quotes, and so has to be there: name of the placeholder -> value."""


def _text_instances(deployment: Deployment) -> int:
    """One process tokenizes for a CPU; a GPU takes what several give it."""
    return 1 if deployment.plan.engine.backend == "openvino" else min(4, deployment.plan.engine.max_batch_size)


def _bls_instances(deployment: Deployment) -> int:
    """As many as answer a full batch; on a CPU, which has better to do, one."""
    if deployment.plan.engine.backend == "openvino":
        return 1
    return math.ceil(deployment.plan.engine.max_batch_size / BLS_REQUESTS)


ENGINE: Table = {
    "gpt_model_path": lambda of: str(of.engine / ENGINE_DIR),
    "gpt_model_type": lambda of: "inflight_fused_batching",
    "max_beam_width": _NO_BEAMS,
    "encoder_model_path": _DECODER_ONLY,
    "max_tokens_in_paged_kv_cache": memory.kv_tokens,
    "max_attention_window_size": memory.attention_windows,
    "sink_token_length": "engines are built without StreamingLLM",
    "batch_scheduler_policy": "guaranteed_no_evict: a request that has begun is never paused",
    "kv_cache_free_gpu_mem_fraction": memory.kv_fraction,
    "cross_kv_cache_fraction": f"{_DECODER_ONLY}: other engines do not load with it",
    "kv_cache_host_memory_bytes": "blocks that make room are forgotten, not moved to the host",
    "kv_cache_onboard_blocks": "true: matters only with blocks on the host",
    "exclude_input_in_output": lambda of: "false",
    "cancellation_check_period_ms": lambda of: CANCELLATION_CHECK_MS,
    "stats_check_period_ms": "100, the period of upstream's metrics",
    "iter_stats_max_iterations": "upstream's number: read by its metrics thread alone",
    "request_stats_max_iterations": "no statistics of single requests: they cost time in every step",
    "enable_kv_cache_reuse": lambda of: on(of.plan.engine.kv_cache.reuse or of.drafts),
    "normalize_log_probs": "true: changes the scores of beams alone",
    "enable_chunked_context": lambda of: on(of.plan.engine.chunked_prefill),
    "gpu_device_ids": lambda of: of.gpu_groups(),
    "participant_ids": "ranks are spawned or counted by MPI, not chosen",
    "num_nodes": _nodes,
    "lora_cache_optimal_adapter_size": _adapter_rank,
    "lora_cache_max_adapter_size": _adapter_rank,
    "lora_cache_gpu_memory_fraction": "0.05 of what the KV cache leaves",
    "lora_cache_host_memory_bytes": memory.lora_host_bytes,
    "lora_prefetch_dir": _prefetched,
    "decoding_mode": _decoding_mode,
    "executor_worker_path": _worker,
    "lookahead_window_size": _lookahead,
    "lookahead_ngram_size": _lookahead,
    "lookahead_verification_set_size": _lookahead,
    "medusa_choices": _medusa_tree,
    "eagle_choices": "engines have no EAGLE here",
    "gpu_weights_percent": "1.0: all weights stay on the GPU",
    "enable_context_fmha_fp32_acc": _UNMEASURED,
    "multi_block_mode": _UNMEASURED,
    "cuda_graph_mode": _UNMEASURED,
    "cuda_graph_cache_size": _UNMEASURED,
    "speculative_decoding_fast_logits": "drafts are compared by tokens, not by logits",
    # The backend does not load without these three; an empty one counts as not set.
    "tokenizer_dir": lambda of: "",
    "guided_decoding_backend": lambda of: "xgrammar" if _guides(of) else "",
    "xgrammar_tokenizer_info_path": lambda of: str(of.engine / XGRAMMAR_FILE) if _guides(of) else "",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "for python models",
}
"""`tensorrt_llm` and `tensorrt_llm_draft`, served by the C++ backend."""

PYTHON_ENGINE: Table = {
    "gpt_model_path": lambda of: str(of.engine),
    "exclude_input_in_output": lambda of: "false",
    "cancellation_check_period_ms": lambda of: CANCELLATION_CHECK_MS,
    "stats_check_period_ms": lambda of: "250",
    "stream_interval": lambda of: str(of.plan.engine.stream_interval),
    "gpu_device_ids": lambda of: of.gpu_groups(),
    "FORCE_CPU_ONLY_INPUT_TENSORS": lambda of: "no",
}
"""`tensorrt_llm`, served by Conch's python models."""

LLMAPI: Table = {
    "gpu_device_ids": lambda of: of.gpu_groups(),
}
"""`tensorrt_llm` of the layout `llmapi`; everything else is in its model.yaml."""

PREPROCESSING: Table = {
    "tokenizer_dir": lambda of: str(of.engine / TOKENIZER_DIR),
    "add_special_tokens": lambda of: "true",
    "multimodal_model_path": _NO_PICTURES,
    "engine_dir": lambda of: str(of.engine),
    "max_num_images": _NO_PICTURES,
}

POSTPROCESSING: Table = {
    "tokenizer_dir": lambda of: str(of.engine / TOKENIZER_DIR),
    "skip_special_tokens": lambda of: "true",
}

BLS: Table = {
    "accumulate_tokens": lambda of: "true",
    "tensorrt_llm_model_name": lambda of: TARGET,
    "tensorrt_llm_draft_model_name": lambda of: DRAFT if of.drafts else None,
    "multimodal_encoders_name": _NO_PICTURES,
    "cancellation_check_period_ms": lambda of: CANCELLATION_CHECK_MS,
}


def values(table: Table, deployment: Deployment) -> dict[str, str]:
    """The parameters that are set."""
    asked = {name: value(deployment) for name, value in table.items() if not isinstance(value, str)}
    return {name: value for name, value in asked.items() if value is not None}


def placeholders(deployment: Deployment) -> dict[str, str]:
    return {name: value(deployment) for name, value in PLACEHOLDERS.items()}
