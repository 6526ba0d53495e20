"""`engine.llm_args` over what the plan's other keys decide: what is decided there cannot be said twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conch_build.errors import PlanError

DECIDED: dict[str, str] = {
    "backend": "`engine.backend`",
    "model": "`model.checkpoint`",
    "tokenizer": "`model.checkpoint`",
    "skip_tokenizer_init": "guided decoding, which needs the tokenizer",
    "revision": "`model.revision`",
    "trust_remote_code": "`model.trust_remote_code`",
    "dtype": "`engine.precision`",
    "max_batch_size": "`engine.max_batch_size`",
    "max_num_tokens": "`engine.max_num_tokens`",
    "max_seq_len": "`engine.max_seq_len`",
    "enable_chunked_prefill": "`engine.chunked_prefill`",
    "stream_interval": "`engine.stream_interval`",
    "tensor_parallel_size": "`engine.parallel.tensor`",
    "pipeline_parallel_size": "`engine.parallel.pipeline`",
    "moe_expert_parallel_size": "`engine.parallel.expert`",
    "moe_tensor_parallel_size": "`engine.parallel.expert`",
    "gpus_per_node": "`target.gpus_per_node`",
    "kv_cache_config.enable_block_reuse": "`engine.kv_cache.reuse`",
    "kv_cache_config.tokens_per_block": "`engine.kv_cache.tokens_per_block`",
    "kv_cache_config.free_gpu_memory_fraction": "`engine.kv_cache.free_memory_fraction`",
    "kv_cache_config.max_tokens": "`engine.kv_cache.size`",
    "kv_cache_config.dtype": "`quantization.kv_cache`",
    "enable_lora": "`engine.lora`",
    "lora_config.lora_dir": "`engine.lora.adapters`",
    "lora_config.lora_target_modules": "`engine.lora.target_modules`",
    "lora_config.max_lora_rank": "`engine.lora.max_rank`",
    "lora_config.max_loras": "`engine.lora.max_loaded`",
    "speculative_config.decoding_type": "`engine.speculation.method`",
    "speculative_config.max_draft_len": "`engine.speculation.max_draft_len`",
    "speculative_config.num_nextn_predict_layers": "`engine.speculation.max_draft_len`",
    "speculative_config.max_matching_ngram_size": "`engine.speculation.max_matching_ngram_size`",
    "speculative_config.speculative_model_dir": "`engine.speculation.checkpoint`",
    "speculative_config.speculative_model": "`engine.speculation.checkpoint`",
}
"""Argument, with the object that it is in -> the key of the plan that decides it."""

_ONLY_WITH = {"lora_config": "`engine.lora.adapters`", "speculative_config": "`engine.speculation.method`"}
"""Objects that the plan turns on; what they have beside may be set once they are there."""

_REPLACED = ("cuda_graph_config",)
"""Objects whose fields belong together: another one is taken as a whole."""

_FIXED = {"disable_overlap_scheduler": "what the plan asks for runs without the overlap scheduler"}
"""Arguments that the plan sets because it must."""


def merged(args: Mapping[str, Any], further: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`args` with `further` put over it, objects field by field. Raises PlanError for what is decided elsewhere."""
    result = dict(args)
    for name, value in further.items():
        _refuse_decided(name, where)
        own = args.get(name)
        if name in _ONLY_WITH and own is None:
            raise PlanError("is not turned on", where=f"{where}.{name}", fix=f"Set {_ONLY_WITH[name]} first.")
        if name in _FIXED and own not in (None, value):
            raise PlanError(f"must be {own}: {_FIXED[name]}", where=f"{where}.{name}", fix="Remove it here.")
        if isinstance(own, Mapping) and name not in _REPLACED:
            if not isinstance(value, Mapping):
                raise PlanError(f"must be a mapping, not {value!r}", where=f"{where}.{name}")
            for field in value:
                _refuse_decided(f"{name}.{field}", where)
            value = {**own, **value}
        result[name] = value
    return result


def _refuse_decided(name: str, where: str) -> None:
    if name in DECIDED:
        raise PlanError(f"is decided by {DECIDED[name]}", where=f"{where}.{name}", fix="Remove it here.")
