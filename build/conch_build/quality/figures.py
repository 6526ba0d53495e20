"""What an evaluation found, as it is kept in `quality.json`, and which limits of a plan it breaks. Plain records."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from conch_build.errors import StoreError

QUALITY_FILE = "quality.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")


class TextFigures(_Record):
    """On text; what compares with a baseline is None without one."""

    tokens: int
    """Predicted ones: all of a text but the first."""
    perplexity: float | None = None
    """None: the server does not tell the log probabilities of a text."""
    baseline_perplexity: float | None = None
    perplexity_ratio: float | None = None
    perplexity_ratio_interval: tuple[float, float] | None = None
    """95 % of it."""
    agreement: float | None = None
    """Share of positions where both find the same token likeliest."""
    kl: float | None = None
    """Mean KL(baseline || build) of a position, in nats."""
    kl_exact: bool | None = None
    """False: a lower bound, from the likeliest tokens of both."""
    kl_unseen: float | None = None
    """Mean share of the baseline's probability on tokens that are not known of both; 0 when exact."""


class TaskFigures(_Record):
    """On tasks; None: no task of that kind, or its library is not installed."""

    tasks: int
    exact_match: float | None = None
    bleu: float | None = None
    rouge_l: float | None = None
    similarity: float | None = None
    valid: float | None = None


class Sample(_Record):
    """One task's answers side by side."""

    question: str
    right: tuple[str, ...] = ()
    answer: str
    baseline: str | None = None


class Figures(_Record):
    text: TextFigures | None = None
    tasks: TaskFigures | None = None
    baseline_tasks: TaskFigures | None = None
    samples: tuple[Sample, ...] = ()

    def value(self, limit: str) -> float | None:
        """The figure that a limit of the plan (`kl_max`) is about; None: it was not measured."""
        name = limit.rpartition("_")[0]
        for part in (self.text, self.tasks):
            if part is not None and name in type(part).model_fields:
                found: float | None = getattr(part, name)
                return found
        return None

    def broken(self, limits: dict[str, float]) -> list[str]:
        """The limits that are not held, a phrase each. One whose figure is missing or no number is not held."""
        return [phrase for limit, bound in limits.items() if (phrase := _broken(limit, bound, self.value(limit)))]

    def save(self, folder: Path) -> None:
        (folder / QUALITY_FILE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Figures:
        """Raises StoreError when the file is missing or does not read."""
        path = folder / QUALITY_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", where=str(path)) from None
        except ValidationError as error:
            what = f"does not read as it should ({error.errors(include_url=False)[0]['msg']})"
            raise StoreError(what, where=str(path), fix="Build again with --force.") from None


def _broken(limit: str, bound: float, value: float | None) -> str | None:
    name, _, end = limit.rpartition("_")
    if value is None:
        return f"{name} was not measured ({limit} {bound:g})"
    holds = value <= bound if end == "max" else value >= bound  # a figure that is no number holds nothing
    return None if holds else f"{name} {value:.4g} is {'above' if end == 'max' else 'below'} {bound:g}"
