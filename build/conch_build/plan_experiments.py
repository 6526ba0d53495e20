"""The plan's `serving.gateway.experiments`: variants of a model that share its traffic, and when one must stop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conch_build.plan_parts import Part

Share = Annotated[float, Field(ge=0, le=1)]
SHADOW = "shadow"
"""The variant's name under which a shadow's figures are kept."""
Ratio = Annotated[float, Field(gt=1)]


class Guard(Part):
    """What a variant may cost beside the first one. Passed for certain, it gets no more requests."""

    errors_increase: Share | None = 0.02
    """Of all requests."""
    ttft_ratio: Ratio | None = None
    e2e_ratio: Ratio | None = None
    cost_ratio: Ratio | None = None
    quality_decrease: Share | None = None
    """Of the mean score of /v1/feedback."""
    failures_in_a_row: Annotated[int, Field(ge=1, strict=True)] | None = 10
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """How often a good variant may be stopped by chance."""


class Shadow(Part):
    model: str
    """A model of this gateway, or one of its adapters; its answers go nowhere."""
    share: Share = 1.0
    """Of the requests that are copied."""
    max_running: Annotated[int, Field(ge=1, strict=True)] = 4
    """More are not copied."""


class Variant(Part):
    model: str
    """A model of this gateway, or one of its adapters."""
    weight: Annotated[float, Field(ge=0)] = 1.0


class Experiment(Part):
    """Requests that name this experiment as their model are shared out among its variants."""

    variants: Annotated[dict[str, Variant], Field(min_length=1)]
    """The first one is the baseline."""
    sticky: Literal["user", "key", "session", "none"] = "user"
    """What keeps its variant: the body's `user`, the API key or the header `x-session-id`. Without it: nothing."""
    decide_by: Literal["quality", "errors", "ttft", "e2e", "cost"] = "e2e"
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """How often a difference may be seen that is none."""
    guard: Guard = Guard()
    shadow: Shadow | None = None

    @model_validator(mode="after")
    def _somebody_serves(self) -> Experiment:
        if not any(variant.weight for variant in self.variants.values()):
            raise ValueError("every weight is 0: no variant would get a request")
        if SHADOW in self.variants:
            raise ValueError(f"no variant can be called {SHADOW!r}: that is the shadow's name")
        return self
