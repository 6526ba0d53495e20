"""`speculative_config`: how the LLM API guesses tokens, and what that excludes.

draft and eagle3 load a checkpoint of their own, as it is; ngram looks words up in the text; mtp uses layers that the
model has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conch_build.errors import PlanError
from conch_build.model_info import ModelInfo
from conch_build.plan import Plan
from conch_build.profiles import Profile

WHERE = "engine.speculation"
MTP_ARCHITECTURES = (
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeForCausalLM",
    "Qwen3NextForCausalLM",
)
"""Models that were trained with layers that predict further tokens."""

EAGLE3_ARCHITECTURES = (
    *MTP_ARCHITECTURES,
    "GptOssForCausalLM",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""Models that hand what they compute inside to a head which runs in the same engine."""

_WITHOUT_OVERLAP = ("draft", "ngram")
"""Methods that TensorRT-LLM runs without its overlap scheduler."""


def speculation_args(plan: Plan, info: ModelInfo, profile: Profile, draft: Path | None = None) -> dict[str, Any]:
    """The arguments of the plan's method; none for `none`. Raises PlanError for what it excludes."""
    speculation = plan.engine.speculation
    method = speculation.method
    if method == "none":
        return {}
    spelling = profile.decoding_types.get(method)
    if method in ("medusa", "lookahead") or spelling is None:
        raise PlanError(
            f"the LLM API of TensorRT-LLM {profile.name} has no `{method}`",
            where=f"{WHERE}.method",
            fix="Use draft, ngram, eagle3 or mtp, or set `engine.backend: tensorrt` with release 1.2.1.",
        )
    _check_excluded(plan)
    config: dict[str, Any] = {"decoding_type": spelling}
    if method == "mtp":
        _check_mtp(info)
        config["num_nextn_predict_layers"] = speculation.max_draft_len
    else:
        config["max_draft_len"] = speculation.max_draft_len
    if method == "eagle3":
        _check_eagle3(info)
    if method == "ngram":
        config["max_matching_ngram_size"] = speculation.max_matching_ngram_size
    if method in ("draft", "eagle3"):
        config["speculative_model_dir"] = str(draft or _checkpoint(plan))
    overlap = {"disable_overlap_scheduler": True} if method in _WITHOUT_OVERLAP else {}
    return {"speculative_config": config, **overlap}


def check_draft(plan: Plan, info: ModelInfo, draft: ModelInfo) -> None:
    """Raises PlanError for a draft model that guesses in another vocabulary than the target's."""
    if plan.engine.speculation.method == "draft" and draft.vocab_size != info.vocab_size:
        raise PlanError(
            f"has a vocabulary of {draft.vocab_size:,} tokens and its target one of {info.vocab_size:,}",
            where=f"{WHERE}.checkpoint",
            fix="Take a draft model of the same family, or method `ngram`.",
        )


def _checkpoint(plan: Plan) -> str:
    checkpoint, method = plan.engine.speculation.checkpoint, plan.engine.speculation.method
    if checkpoint is None:
        what = "the EAGLE-3 head is" if method == "eagle3" else "the draft model is"
        raise PlanError(f"does not say where {what}", where=f"{WHERE}.checkpoint", fix="Name its checkpoint.")
    return checkpoint


def _check_excluded(plan: Plan) -> None:
    if plan.engine.parallel.pipeline > 1:
        raise PlanError(
            "the LLM API does not speculate with pipeline parallelism",
            where="engine.parallel.pipeline",
            fix="Set it to 1 and use `engine.parallel.tensor`, or set `engine.speculation.method: none`.",
        )
    if plan.engine.llm_args.get("sampler_type") == "TRTLLMSampler":
        raise PlanError(
            "speculation needs the TorchSampler",
            where="engine.llm_args.sampler_type",
            fix="Remove it, or set `engine.speculation.method: none`.",
        )


def _check_eagle3(info: ModelInfo) -> None:
    if info.architecture not in EAGLE3_ARCHITECTURES:
        raise PlanError(
            f"TensorRT-LLM's {info.architecture} has no place for an EAGLE-3 head",
            where=f"{WHERE}.method",
            fix="Use draft or ngram.",
        )


def _check_mtp(info: ModelInfo) -> None:
    if info.architecture not in MTP_ARCHITECTURES:
        raise PlanError(
            f"{info.architecture} has no layers for multi-token prediction",
            where=f"{WHERE}.method",
            fix="Use draft, eagle3 or ngram.",
        )
