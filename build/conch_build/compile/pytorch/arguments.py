"""The LLM API's arguments for a plan: names and spellings of one release, nested objects whole, checked.

A nested object of the YAML replaces the whole object that `trtllm-serve` makes of its flags, so each is written with
every field that it has. Knows nothing of files and of how the arguments are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype
from conch_build.compile.pytorch.kv_cache import kv_cache_config
from conch_build.compile.pytorch.lora import lora_config
from conch_build.compile.pytorch.merge import merged
from conch_build.compile.pytorch.speculation import speculation_args
from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.profiles import Profile

GUIDES = "xgrammar"
"""Guided decoding's library: it has every kind of guide, and all releases have it."""

_NESTED = {
    "cuda_graph_config": "CudaGraphConfig",
    "kv_cache_config": "KvCacheConfig",
    "lora_config": "LoraConfig",
    "peft_cache_config": "PeftCacheConfig",
    "cache_transceiver_config": "CacheTransceiverConfig",
    "scheduler_config": "SchedulerConfig",
    "moe_config": "MoeConfig",
}
"""Argument -> the object that it takes, as the profile names it."""


def llm_args(plan: Plan, info: ModelInfo, profile: Profile, draft: Path | None = None) -> dict[str, Any]:
    """Everything but the model's own path. `draft`: where the draft model or head lies, None: as the plan has it.

    Raises PlanError with all that the release would not take.
    """
    args = _of_plan(plan, info, profile, draft)
    return checked(merged(args, plan.engine.llm_args, "engine.llm_args"), profile, "engine.llm_args")


def checked(args: Mapping[str, Any], profile: Profile, where: str) -> dict[str, Any]:
    """The arguments with every nested object whole. Raises PlanError with all that the release would not take."""
    problems = profile.llm_args_problems(args, "pytorch")
    if problems:
        what = "; ".join(f"`{problem.key}`: {problem.message}" for problem in problems)
        fixes = dict.fromkeys(problem.fix for problem in problems if problem.fix)
        raise PlanError(what, where=where, fix=" ".join(fixes) or None)
    return {name: _whole(name, value, profile) for name, value in args.items()}


def to_yaml(args: Mapping[str, Any]) -> str:
    """The arguments as `--extra_llm_api_options` and Conch's Triton model read them."""
    text: str = yaml.safe_dump(dict(args), sort_keys=False, allow_unicode=True, width=120)
    return text


def _of_plan(plan: Plan, info: ModelInfo, profile: Profile, draft: Path | None) -> dict[str, Any]:
    engine = plan.engine
    args: dict[str, Any] = {
        "dtype": gpu_dtype(plan, info),
        "max_batch_size": engine.max_batch_size,
        "max_num_tokens": engine.max_num_tokens,
        "max_seq_len": engine.max_seq_len,
        "enable_chunked_prefill": engine.chunked_prefill,
        "stream_interval": engine.stream_interval,
        **dict(_parallel(plan)),
        "kv_cache_config": kv_cache_config(plan, info, gpu_kv_dtype(plan, info)),
        "cuda_graph_config": {"max_batch_size": engine.max_batch_size, "enable_padding": True},
        "guided_decoding_backend": GUIDES,
        "enable_iter_perf_stats": True,
    }
    if plan.model.trust_remote_code:
        args["trust_remote_code"] = True
    if lora := lora_config(plan, info):
        args["lora_config"] = lora
        if not profile.graphs_take_adapters:
            args["cuda_graph_config"] = None
    return args | speculation_args(plan, info, profile, draft)


def _parallel(plan: Plan) -> Iterator[tuple[str, int]]:
    parallel = plan.engine.parallel
    yield "tensor_parallel_size", parallel.tensor
    yield "pipeline_parallel_size", parallel.pipeline
    if parallel.expert > 1:
        if parallel.tensor % parallel.expert:
            raise PlanError(
                f"{parallel.expert} does not divide the {parallel.tensor} GPUs of `engine.parallel.tensor`",
                where="engine.parallel.expert",
                fix="Set it to a divisor.",
            )
        yield "moe_tensor_parallel_size", parallel.tensor // parallel.expert
        yield "moe_expert_parallel_size", parallel.expert
    if parallel.tensor * parallel.pipeline > 1:
        yield "gpus_per_node", plan.target.gpus_per_node


def _whole(name: str, value: Any, profile: Profile) -> Any:
    """A nested object with the release's defaults for what it leaves out; None stands for its own default anyway."""
    if name not in _NESTED or not isinstance(value, Mapping):
        return value
    defaults = profile.llm_args_defaults(_NESTED[name])
    return {key: default for key, default in defaults.items() if default is not None} | dict(value)
