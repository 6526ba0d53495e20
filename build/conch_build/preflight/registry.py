"""What a rule is, what it finds, and the list of all rules.

A rule is a generator of violations; its docstring is what `conch explain` says of it. Its parameters name the facts it
needs (those of `facts.Facts.known`, or `repository`): it runs when all of them are known and the plan's backend
is one of its own. Rules that are decided elsewhere, as while a checkpoint is read, are declared.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from conch_build.errors import BuildError, CheckpointError, PlanError
from conch_build.plan import Backend

Severity = Literal["error", "warning"]
Decided = Literal["plan", "checkpoint", "adapter", "repository", "host"]

ALL: tuple[Backend, ...] = ("openvino", "tensorrt", "pytorch")
CPU: tuple[Backend, ...] = ("openvino",)
GPU: tuple[Backend, ...] = ("tensorrt", "pytorch")
ENGINE: tuple[Backend, ...] = ("tensorrt",)
LLM_API: tuple[Backend, ...] = ("pytorch",)


@dataclasses.dataclass(frozen=True)
class Violation:
    """One reason why a plan will not work (error) or not as hoped (warning). `where` is the plan's key."""

    where: str
    message: str
    fix: str
    severity: Severity = "error"
    rule: str = ""

    def as_dict(self) -> dict[str, str]:
        return {
            "rule": self.rule,
            "severity": self.severity,
            "where": self.where,
            "message": self.message,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        return f"[{self.rule}] {self.where}: {self.message}. {self.fix}".rstrip()


Find = Callable[..., Iterator[Violation] | None]
"""None: it only asks another module, which refuses or does not."""


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str
    explanation: str
    """For a person in a hurry: what goes wrong, and why."""
    severity: Severity
    """Of most that it finds."""
    references: tuple[str, ...]
    """Where it went wrong in public: `owner/repository#number`, or a document."""
    backends: tuple[Backend, ...]
    decided: Decided
    """What is looked at."""
    find: Find | None = None
    """None: found where that thing is read."""
    facts: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "rule": self.name,
            "explanation": self.explanation,
            "severity": self.severity,
            "references": list(self.references),
            "backends": list(self.backends),
            "decided": self.decided,
        }


RULES: dict[str, Rule] = {}


def rule(
    name: str,
    *,
    on: tuple[Backend, ...] = ALL,
    severity: Severity = "error",
    references: tuple[str, ...] = (),
    decided: Decided = "plan",
) -> Callable[[Find], Find]:
    """Register a rule; `name` becomes the `rule` of what it finds, unless that has a closer one."""

    def register(function: Find) -> Find:
        facts = tuple(inspect.signature(function).parameters)
        explanation = inspect.getdoc(function) or ""
        RULES[name] = Rule(name, _flowing(explanation), severity, references, on, decided, function, facts)
        return function

    return register


def declare(
    name: str,
    explanation: str,
    *,
    decided: Decided,
    on: tuple[Backend, ...] = ALL,
    severity: Severity = "error",
    references: tuple[str, ...] = (),
) -> None:
    """List a rule that is decided elsewhere."""
    RULES[name] = Rule(name, _flowing(explanation), severity, references, on, decided)


def find(facts: Mapping[str, Any], backend: Backend) -> Iterator[Violation]:
    """What all rules find in the facts that are known, in the rules' order.

    What another module refuses while a rule asks it is a violation, too.
    """
    for found in RULES.values():
        if found.find is None or backend not in found.backends or not facts.keys() >= set(found.facts):
            continue
        given = {name: facts[name] for name in found.facts}
        try:
            for violation in found.find(**given) or ():
                yield violation if violation.rule else dataclasses.replace(violation, rule=found.name)
        except (PlanError, BuildError, CheckpointError) as error:
            yield from_error(error, found.name)


def from_error(error: PlanError | BuildError | CheckpointError, rule: str) -> Violation:
    """Another module's refusal as a violation: of its place in the plan, or of the whole."""
    where = error.where or "plan"
    is_key = where.split(".")[0] in ("model", "target", "quantization", "engine", "serving", "plan")
    message = error.what if is_key else f"{where}: {error.what}"
    return Violation(where if is_key else "plan", message, error.fix or "", rule=rule)


def _flowing(text: str) -> str:
    """Lines of a paragraph joined; paragraphs stay apart."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
