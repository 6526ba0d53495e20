"""What flags of `trtllm-build` say of each other and of the GPU that the engine is for."""

from __future__ import annotations

from collections.abc import Iterator

from conch_build.profiles.flags import Values

NOT_ON_SM100 = (
    "--gemm_swiglu_plugin",
    "--fp8_rowwise_gemm_plugin",
    "--low_latency_gemm_plugin",
    "--low_latency_gemm_swiglu_plugin",
    "--bert_context_fmha_fp32_acc",
)
"""Plugins without kernels for B200 and its kin."""


def problems(values: Values, sm: int | None = None) -> Iterator[str]:
    """One sentence for each broken rule; `sm`: compute capability of the GPU, None if it is not known."""
    if "--gather_context_logits" in values and _draft_len(values) > 0:
        yield "`--gather_context_logits` excludes `--max_draft_len` above 0"
    if _on(values, "--multiple_profiles") and "--opt_num_tokens" in values:
        yield "`--multiple_profiles enable` excludes `--opt_num_tokens`"
    if _on(values, "--gemm_swiglu_plugin") and _first(values, "--use_fused_mlp", "enable") != "enable":
        yield "`--gemm_swiglu_plugin` needs `--use_fused_mlp enable`"
    if _on(values, "--user_buffer") and _first(values, "--reduce_fusion", "disable") != "enable":
        yield "`--user_buffer enable` needs `--reduce_fusion enable`"
    if _on(values, "--streamingllm"):
        yield "`--streamingllm enable` always fails: the feature was removed"
    if sm is not None and 100 <= sm < 110:
        for flag in NOT_ON_SM100:
            if _on(values, flag):
                yield f"`{flag}` has no kernels for this GPU (SM{sm})"


def _first(values: Values, flag: str, default: str) -> str:
    given = values.get(flag)
    return given[0] if given else default


def _on(values: Values, flag: str) -> bool:
    return _first(values, flag, "disable") != "disable"


def _draft_len(values: Values) -> int:
    text = _first(values, "--max_draft_len", "0")
    return int(text) if text.isdigit() else 0
