"""`conch explain [RULE]`: what a rule of `conch check` is about, why, and where it went wrong in public."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, table, with_console

if TYPE_CHECKING:
    from conch_build.preflight import Rule

_WIDTH = 100


@click.command()
@click.argument("rule", required=False)
@with_console
def explain(console: Console, rule: str | None) -> None:
    """Explain RULE, as `conch check` names it; without one, list all rules.

    `--json` gives explanation, severity and references of the one, or of all.
    """
    from conch_build.preflight import RULES

    if rule is None:
        rules = [RULES[name] for name in sorted(RULES)]
        rows = [(found.name, found.severity, _first_sentence(found.explanation)) for found in rules]
        console.result([found.as_dict() for found in rules], table(("rule", "severity", "about"), rows))
        return
    found = _found(rule)
    console.result(found.as_dict(), _text(found))


def _found(name: str) -> Rule:
    """Raises InputError with the nearest name."""
    import difflib

    from conch_build.errors import InputError
    from conch_build.preflight import RULES

    if name in RULES:
        return RULES[name]
    near = difflib.get_close_matches(name, RULES, n=1, cutoff=0.4)
    fix = f"Did you mean `{near[0]}`?" if near else "`conch explain` lists them."
    raise InputError(f"there is no rule `{name}`", fix=fix)


def _text(rule: Rule) -> str:
    decided = {"plan": "the plan", "checkpoint": "the checkpoint", "adapter": "an adapter"}
    where = {**decided, "repository": "a model repository", "host": "the machine that serves"}[rule.decided]
    lines = [f"{rule.name} ({rule.severity}; {where}; {', '.join(rule.backends)})", ""]
    lines += textwrap.wrap(rule.explanation, _WIDTH)
    if rule.references:
        lines += ["", "seen in:", *(f"  {reference}" for reference in rule.references)]
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    return textwrap.shorten(text, _WIDTH, placeholder=" ...")
