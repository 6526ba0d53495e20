"""The plan's `quality`: on what a build is judged, and how far it may fall behind its baseline. Measures nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conch_build.plan_parts import Count, Part, Place

_Share = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Quality(Part):
    baseline: Place | None = None
    """Checkpoint to compare with. None: the plan's own, built unquantized, with a cache of the activations' type."""
    text: Place = "builtin"
    """`builtin`, or a `.txt`/`.jsonl` file: what perplexity, agreement and KL are measured on."""
    samples: Count = 32
    """Texts read of it."""
    max_length: Annotated[Count, Field(ge=2)] = 256
    """Tokens kept of each text."""
    tasks: Place | None = None
    """A `.jsonl` file: a prompt or messages a line, with a reference, answers or a schema."""
    perplexity_max: _Positive | None = None
    perplexity_ratio_max: _Positive | None = None
    """Perplexity over that of the baseline, as 1.02."""
    agreement_min: _Share | None = None
    """Share of positions where both find the same token likeliest."""
    kl_max: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Mean Kullback-Leibler divergence of a position from the baseline, in nats."""
    exact_match_min: _Share | None = None
    bleu_min: Annotated[float, Field(ge=0, le=100)] | None = None
    rouge_l_min: _Share | None = None
    similarity_min: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Mean cosine of the embeddings of answer and reference."""
    valid_min: _Share | None = None
    """Share of the answers to tasks with a schema that satisfy it."""

    @property
    def limits(self) -> dict[str, float]:
        """The thresholds that are set, by key; none: the build has no gate."""
        values = self.model_dump(include=set(self.limit_keys()))
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def limit_keys(cls) -> list[str]:
        return [name for name in cls.model_fields if name.endswith(("_min", "_max"))]
