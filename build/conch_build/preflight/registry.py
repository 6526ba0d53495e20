"""What a rule is, what it finds, and the list of all rules.

A rule is a generator of violations. One that takes the plan alone runs always; one that also takes the
model's facts runs when the checkpoint can be read.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal

from conch_build.model_info import ModelInfo
from conch_build.plan import Plan


@dataclasses.dataclass(frozen=True)
class Violation:
    """One reason why a plan will not work (error) or not as hoped (warning). `where` is the plan's key."""

    where: str
    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"
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


PlanRule = Callable[[Plan], Iterator[Violation]]
ModelRule = Callable[[Plan, ModelInfo], Iterator[Violation]]

PLAN_RULES: list[PlanRule] = []
MODEL_RULES: list[ModelRule] = []


def rule(name: str) -> Callable[[Any], Any]:
    """Register a rule; `name` becomes the `rule` of what it finds, unless that has a closer one."""

    def register(function: Callable[..., Iterator[Violation]]) -> Callable[..., Iterator[Violation]]:
        @functools.wraps(function)
        def named(*facts: Any) -> Iterator[Violation]:
            for violation in function(*facts):
                yield violation if violation.rule else dataclasses.replace(violation, rule=name)

        rules: list[Any] = MODEL_RULES if len(inspect.signature(function).parameters) == 2 else PLAN_RULES
        rules.append(named)
        return named

    return register
