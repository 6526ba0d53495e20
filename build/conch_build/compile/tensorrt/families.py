"""Which of TensorRT-LLM's `convert_checkpoint.py` reads an architecture, and what that one can do.

A table. What is not in it has no engine: newer families exist for the PyTorch backend alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from conch_build.compile.container import EXAMPLES
from conch_build.errors import PlanError


@dataclass(frozen=True)
class Family:
    name: str
    folder: str
    """Under EXAMPLES."""
    pipeline: bool = True
    """Whether its converter splits layers over GPUs."""
    experts: bool = True
    """Whether its converter can spread experts over GPUs."""
    calibrated: bool = False
    """Whether its converter takes a checkpoint that ModelOpt has quantized to fp8 or nvfp4."""

    @property
    def converter(self) -> str:
        return f"{EXAMPLES}/{self.folder}/convert_checkpoint.py"


_LLAMA = Family("llama", "models/core/llama", calibrated=True)
_QWEN = Family("qwen", "models/core/qwen")
_GEMMA = Family("gemma", "models/core/gemma", pipeline=False, experts=False)
_PHI = Family("phi", "models/core/phi", pipeline=False)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "ExaoneForCausalLM",
            "GraniteForCausalLM",
            "GraniteMoeForCausalLM",
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
        ),
        _LLAMA,
    ),
    **dict.fromkeys(("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"), _QWEN),
    **dict.fromkeys(("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"), _GEMMA),
    **dict.fromkeys(("Phi3ForCausalLM", "PhiMoEForCausalLM"), _PHI),
}
"""Architecture, as config.json names it -> its family."""

_FORMATS: dict[str, tuple[str, ...]] = {
    "MixtralForCausalLM": ("none", "int8", "fp8", "nvfp4"),
    "PhiMoEForCausalLM": ("none", "int8", "fp8"),
    "Qwen2MoeForCausalLM": ("none", "int8"),
    **dict.fromkeys(("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"), ("none", "fp8", "nvfp4")),
}
"""Architecture -> the formats of its weights, where engines have not all of them. By the support matrices of
TensorRT-LLM (docs/source/legacy/reference/precision.md, examples/models/core/qwen/README.md) and of ModelOpt 0.37
(examples/llm_ptq/README.md)."""

MEDUSA = Family("medusa", "medusa", experts=False)
MEDUSA_MODEL_TYPES = {"LlamaForCausalLM": "llama", "MixtralForCausalLM": "mixtral", "Qwen2ForCausalLM": "qwen2"}
"""Architectures whose Medusa heads can be converted -> the converter's name for them."""


def family_of(architecture: str) -> Family:
    """Raises PlanError for an architecture without engines."""
    try:
        return FAMILIES[architecture]
    except KeyError:
        raise PlanError(
            f"TensorRT-LLM has no engines for {architecture}",
            where="model.checkpoint",
            fix="Set `engine.backend: pytorch`, which has the newer families.",
        ) from None


def check_format(architecture: str, form: str) -> None:
    """Raises PlanError for weights in a format that engines of the architecture have not."""
    known = _FORMATS.get(architecture)
    if known is not None and form not in known:
        raise PlanError(
            f"engines of {architecture} have no {form} weights",
            where="quantization.format",
            fix=f"TensorRT-LLM builds them with {', '.join(known)}. `engine.backend: pytorch` has formats of its own.",
        )
