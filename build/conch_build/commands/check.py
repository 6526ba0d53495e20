"""`conch check PLAN`: everything that would fail, in one go, with exit code 2 if anything would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, with_console

if TYPE_CHECKING:
    from conch_build.gpu.memory import GpuMemory
    from conch_build.preflight import Facts, Violation


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@with_console
def check(console: Console, plan: Path) -> None:
    """Check PLAN (conch.yaml) and its checkpoint: every violation with its rule, place and fix.

    For a GPU plan it also says what each GPU's memory is taken by. PLAN may be a folder: a Triton model repository,
    whoever wrote it. `conch explain RULE` says more of a rule. Exit code 0: it works. 2: it does not.
    """
    from conch_build.errors import CheckError

    report, lines, violations = _repository(plan) if plan.is_dir() else _plan(plan, console)
    errors = sum(violation.severity == "error" for violation in violations)
    lines += [_paragraph(violation) for violation in violations]
    lines.append(f"{plan}: {errors} error(s), {len(violations) - errors} warning(s)" if violations else f"{plan}: ok")
    about = {"plan": str(plan), "ok": not errors, "violations": [v.as_dict() for v in violations]}
    console.result(about | report, "\n".join(lines))
    if errors:
        click.get_current_context().exit(CheckError.exit_code)


def _plan(path: Path, console: Console) -> tuple[dict[str, Any], list[str], list[Violation]]:
    """The report's own part, its lines, and the violations."""
    from conch_build.plan import load_plan
    from conch_build.preflight import inspect

    found = inspect(load_plan(path), say=console.note)
    memory = found.facts.memory()
    if memory is None:
        return {}, [], found.violations
    return {"gpu_memory": memory.as_dict()}, [_table(found.facts, memory), ""], found.violations


def _repository(folder: Path) -> tuple[dict[str, Any], list[str], list[Violation]]:
    from conch_build.preflight.repository import repository_violations

    return {}, [], repository_violations(folder)


def _table(facts: Facts, memory: GpuMemory) -> str:
    from conch_build.gpu.memory import split_of
    from conch_build.units import format_bytes

    assert facts.gpu is not None
    gpus = split_of(facts.plan).gpus
    left = memory.total_bytes - memory.used_bytes - memory.kv_cache_bytes
    rows = [*memory.parts.items(), ("KV cache", memory.kv_cache_bytes), ("left", left)]
    held = f"{memory.kv_tokens:,} tokens: {memory.requests:,} requests of {memory.request_tokens:,}"
    many = f", {gpus} of them, each" if gpus > 1 else ""
    lines = [f"{facts.gpu.label}{many} {format_bytes(memory.total_bytes)}"]
    for name, size in rows:
        share = f"{100 * size / memory.total_bytes:.0f}%"
        note = f"  {held}" if name == "KV cache" else ""
        lines.append(f"  {name:<12}  {_signed(size):>11}  {share:>4}{note}")
    return "\n".join(lines)


def _signed(size: int) -> str:
    from conch_build.units import format_bytes

    return format_bytes(size) if size >= 0 else f"-{format_bytes(-size)}"


def _paragraph(violation: Violation) -> str:
    colour = "red" if violation.severity == "error" else "yellow"
    head = f"{click.style(violation.severity, fg=colour, bold=True)} {violation.rule}  {violation.where}"
    return "\n    ".join([head, f"{violation.message}.", *([violation.fix] if violation.fix else [])])
