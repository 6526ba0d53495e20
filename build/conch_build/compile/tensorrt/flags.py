"""The command line of `trtllm-build` for a plan. Runs nothing; the split over GPUs is already in the checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from conch_build.compile.precision import gpu_dtype, gpu_kv_dtype
from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan

MODES = {"draft": "draft_tokens_external", "lookahead": "lookahead_decoding", "medusa": "medusa"}
"""Speculation of a plan -> `--speculative_decoding_mode`."""

_NOT_IN_ENGINES = {
    "eagle3": "engines know EAGLE 1 and 2 only",
    "mtp": "engines have no multi-token prediction",
    "ngram": "engines do not look words up in the prompt",
}

_GEMM_PLUGIN = {"fp8": "disable", "nvfp4": "nvfp4"}
"""Who multiplies: cuBLAS, but TensorRT's own kernels for fp8, which are faster where requests are many."""

_IN_FP8 = ("fp8", "w4a8_awq", "nvfp4")
"""Weights beside which attention computes in fp8; beside others `trtllm-build` turns that off."""

_DECIDED = {
    "checkpoint_dir": "`model.checkpoint`",
    "context_fmha": "`engine.chunked_prefill` and `engine.kv_cache.reuse`",
    "kv_cache_type": "in-flight batching, which every engine has",
    "lora_dir": "`engine.lora.adapters`",
    "lora_plugin": "`engine.lora` and `engine.precision`",
    "lora_target_modules": "`engine.lora.target_modules`",
    "max_batch_size": "`engine.max_batch_size`",
    "max_draft_len": "`engine.speculation.max_draft_len`",
    "max_lora_rank": "`engine.lora.max_rank`",
    "max_num_tokens": "`engine.max_num_tokens`",
    "max_seq_len": "`engine.max_seq_len`",
    "output_dir": "Conch's store",
    "paged_kv_cache": "in-flight batching, which every engine has",
    "remove_input_padding": "in-flight batching, which every engine has",
    "speculative_decoding_mode": "`engine.speculation.method`",
    "tokens_per_block": "`engine.kv_cache.tokens_per_block`",
    "use_paged_context_fmha": "`engine.chunked_prefill` and `engine.kv_cache.reuse`",
    "dry_run": "`conch build --dry-run`",
}
"""Flags that other keys of the plan decide."""


def build_argv(
    plan: Plan, info: ModelInfo, checkpoint: Path, out: Path, *, modules: tuple[str, ...], switches: Collection[str]
) -> list[str]:
    """`trtllm-build`. `modules`: what adapters may touch, none without them; `switches`: its flags without a value.

    Raises PlanError for what engines cannot do.
    """
    flags: dict[str, str] = {
        "checkpoint_dir": str(checkpoint),
        "output_dir": str(out),
        "max_batch_size": str(plan.engine.max_batch_size),
        "max_num_tokens": str(plan.engine.max_num_tokens),
        "max_seq_len": str(plan.engine.max_seq_len),
        "remove_input_padding": "enable",
        "kv_cache_type": "paged",
        "tokens_per_block": str(plan.engine.kv_cache.tokens_per_block),
        "context_fmha": "enable",
        "use_paged_context_fmha": _paged_context(plan, info),
        "gpt_attention_plugin": "auto",
        "gemm_plugin": _GEMM_PLUGIN.get(plan.quantization.format, "auto"),
        # ModelOpt writes float16 into its checkpoints; Triton's backend copies logits as the type that it is told.
        "logits_dtype": "float32",
        # Kernels for few and for many tokens: a longer build, and a faster engine.
        "multiple_profiles": "disable" if "opt_num_tokens" in plan.engine.build_args else "enable",
        **_speculation(plan),
        "workers": str(min(plan.engine.parallel.tensor * plan.engine.parallel.pipeline, plan.target.gpus_per_node)),
    }
    flags |= _further(plan.engine.build_args, switches)
    argv = ["trtllm-build"]
    for name, value in flags.items():
        argv += [f"--{name}", value] if value else [f"--{name}"]
    if modules:
        argv += ["--lora_plugin", gpu_dtype(plan, info), "--max_lora_rank", str(plan.engine.lora.max_rank)]
        argv += ["--lora_target_modules", *modules]
    return argv


def needs_paged_context(plan: Plan) -> bool:
    """Whether something in the plan reads keys of earlier steps while it reads a prompt."""
    engine = plan.engine
    return engine.chunked_prefill or engine.kv_cache.reuse or engine.speculation.method == "draft"


def reads_paged(plan: Plan, info: ModelInfo) -> bool:
    """Whether attention over a paged prompt reads the KV cache: one in int8 never, one in fp8 by fp8 arithmetic."""
    cache = gpu_kv_dtype(plan, info)
    return cache != "int8" and (cache != "fp8" or info.quantization is not None or plan.quantization.format in _IN_FP8)


def _paged_context(plan: Plan, info: ModelInfo) -> str:
    if reads_paged(plan, info):
        return "enable"
    if not needs_paged_context(plan):
        return "disable"
    cache = gpu_kv_dtype(plan, info)
    beside = f" beside weights in {plan.quantization.format}" if cache == "fp8" else ""
    raise PlanError(
        f"an {cache} KV cache{beside} excludes chunked prompts, reuse of blocks and draft models",
        where="quantization.kv_cache",
        fix="Use `auto`, or set `engine.chunked_prefill: false` and `engine.kv_cache.reuse: false`.",
    )


def _speculation(plan: Plan) -> dict[str, str]:
    speculation = plan.engine.speculation
    if speculation.method == "none":
        return {}
    if speculation.method not in MODES:
        raise PlanError(
            _NOT_IN_ENGINES[speculation.method],
            where="engine.speculation.method",
            fix=f"Use {', '.join(MODES)}, or set `engine.backend: pytorch`.",
        )
    return {
        "speculative_decoding_mode": MODES[speculation.method],
        "max_draft_len": str(speculation.max_draft_len),
    }


def _further(asked: Mapping[str, str | int | bool], switches: Collection[str]) -> dict[str, str]:
    """`engine.build_args` as flags; an empty value stands for a flag alone."""
    flags: dict[str, str] = {}
    for name, value in asked.items():
        where = f"engine.build_args.{name}"
        if name in _DECIDED:
            raise PlanError(f"is decided by {_DECIDED[name]}", where=where, fix="Remove it here.")
        if name in switches and not isinstance(value, bool):
            raise PlanError(f"is a switch: true or false, not {value!r}", where=where)
        if not isinstance(value, bool):
            flags[name] = str(value)
        elif name not in switches:
            flags[name] = "enable" if value else "disable"
        elif value:
            flags[name] = ""
    return flags
