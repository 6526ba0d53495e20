"""Everything that can be known to fail before minutes are spent, all of it at once.

`check(plan)` resolves the checkpoint, runs every rule and gives the violations; it builds nothing.
To add a rule, write a function in the module of its subject and decorate it with `registry.rule`.

    registry.py       what a rule is; the list of all
    facts.py          what is known of a plan
    declared.py       rules that are decided elsewhere: while a checkpoint is read, before a server starts
    backend.py, limits.py, data.py, lora.py, quality.py, quantization.py, speculation.py, text.py
    target.py, parallel.py, precision.py, memory.py, arguments.py, rendering.py    GPUs
    repository.py, engines.py    a model repository that is there, and its engines
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conch_build.convert import Say
from conch_build.errors import CheckError
from conch_build.plan import Plan
from conch_build.preflight import (
    arguments,
    backend,
    data,
    declared,
    engines,
    limits,
    lora,
    memory,
    parallel,
    precision,
    quality,
    quantization,
    rendering,
    repository,
    speculation,
    target,
    text,
)
from conch_build.preflight.facts import Facts, gather
from conch_build.preflight.registry import RULES, Rule, Violation, find

__all__ = [
    "RULES",
    "Facts",
    "Report",
    "Rule",
    "Violation",
    "arguments",
    "backend",
    "check",
    "data",
    "declared",
    "engines",
    "inspect",
    "limits",
    "lora",
    "memory",
    "parallel",
    "precision",
    "quality",
    "quantization",
    "raise_for",
    "rendering",
    "repository",
    "speculation",
    "target",
    "text",
]


@dataclass(frozen=True)
class Report:
    facts: Facts
    violations: list[Violation]
    """Errors first."""

    @property
    def works(self) -> bool:
        return all(violation.severity != "error" for violation in self.violations)


def check(plan: Plan, cache_dir: Path | None = None, *, say: Say = lambda text: None) -> list[Violation]:
    """Every violation of `plan`, errors first; an unreadable checkpoint hides only the rules about it."""
    return inspect(plan, cache_dir, say=say).violations


def inspect(plan: Plan, cache_dir: Path | None = None, *, say: Say = lambda text: None) -> Report:
    """`check`, with the facts that it rests on."""
    facts, violations = gather(plan, cache_dir, say)
    known = facts.known()
    violations += find(known, plan.engine.backend)
    violations += rendering.refusals(known, violations)
    return Report(facts, sorted(violations, key=lambda violation: violation.severity != "error"))


def raise_for(violations: Iterable[Violation]) -> None:
    """Raise CheckError with every violation if one of them is an error."""
    violations = list(violations)
    errors = [violation for violation in violations if violation.severity == "error"]
    if errors:
        count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
        lines = "".join(f"\n  {violation}" for violation in errors)
        raise CheckError(f"the plan cannot work: {count}{lines}", [v.as_dict() for v in violations])
