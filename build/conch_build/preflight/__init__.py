"""Everything that can be known to fail before minutes are spent, all of it at once.

`check(plan)` resolves the checkpoint, runs every rule and gives the violations; it builds nothing.
To add a rule, write a function in the module of its subject and decorate it with `registry.rule`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conch_build.checkpoint import examine
from conch_build.convert import Say
from conch_build.errors import CheckError, CheckpointError
from conch_build.plan import Plan
from conch_build.preflight import backend, data, limits, lora, quantization, speculation
from conch_build.preflight.registry import MODEL_RULES, PLAN_RULES, Violation

__all__ = ["Violation", "backend", "check", "data", "limits", "lora", "quantization", "raise_for", "speculation"]


def check(plan: Plan, cache_dir: Path | None = None, *, say: Say = lambda text: None) -> list[Violation]:
    """Every violation of `plan`, errors first; an unreadable checkpoint hides only the rules about it."""
    violations = [found for rule in PLAN_RULES for found in rule(plan)]
    checkpoint, problems = examine(plan.model, cache_dir, say=say)
    violations += [_from_error(error) for error in problems]
    if checkpoint is not None:
        violations += [found for rule in MODEL_RULES for found in rule(plan, checkpoint.info)]
        violations += speculation.draft_violations(plan, checkpoint, cache_dir, say=say)
    return sorted(violations, key=lambda violation: violation.severity != "error")


def _from_error(error: CheckpointError) -> Violation:
    message = f"{error.where}: {error.what}" if error.where else error.what
    return Violation("model.checkpoint", message, error.fix or "", rule=error.rule)


def raise_for(violations: Iterable[Violation]) -> None:
    """Raise CheckError with every violation if one of them is an error."""
    violations = list(violations)
    errors = [violation for violation in violations if violation.severity == "error"]
    if errors:
        count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
        lines = "".join(f"\n  {violation}" for violation in errors)
        raise CheckError(f"the plan cannot work: {count}{lines}", [v.as_dict() for v in violations])
