"""`conch advise`: a plan for a model, a machine, a workload and what matters most, with the reason for each choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conch_build.console import Console, with_console

if TYPE_CHECKING:
    from conch_build.advise.situation import Situation


@click.command()
@click.argument("checkpoint", default="sample")
@click.option(
    "--goal", default="balanced", show_default=True, help="latency, throughput, balanced, memory, cost, accuracy."
)
@click.option("--use", default="chat", show_default=True, help="chat, rag, code (answers repeat prompts), batch.")
@click.option("--gpu", help="As `h100`; without it the CPU engine on this machine.")
@click.option("--gpus", type=int, default=1, show_default=True, help="In one node.")
@click.option("--tokens", type=int, help="Of a request at most, prompt and answer together.  [default: 4096]")
@click.option("--requests", type=int, default=32, show_default=True, help="At once.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan to this file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--rules", is_flag=True, help="Print the table of rules, and nothing else.")
@with_console
def advise(console: Console, checkpoint: str, output: Path | None, force: bool, rules: bool, **asked: Any) -> None:
    """Advise a plan for CHECKPOINT: a Hugging Face directory, a hub id, a .gguf file, or `sample`."""
    from conch_build.advise.choose import advise as choose
    from conch_build.advise.rules import TABLE
    from conch_build.advise.write import advice_text, plan_text, rules_text
    from conch_build.commands.init import plan_name, plan_path, write_plan

    if rules:
        table = [{"key": r.key, "when": r.when, "why": r.why, "excludes": r.excludes} for r in TABLE]
        console.result({"rules": table}, rules_text())
        return
    written = plan_path(checkpoint, output or Path("conch.yaml"))
    advice = choose(situation_of(console, checkpoint, **asked), plan_name(checkpoint), written)
    text = plan_text(advice)
    if output is not None:
        write_plan(output, text, force=force)
    choices = [
        {"key": c.key, "value": c.value, "why": c.why, "excludes": c.excludes, "refused": list(c.refused)}
        for c in advice.choices
    ]
    about = {"plan": advice.data, "choices": choices, "file": output and str(output)}
    end = f"wrote {output}; next: conch check {output}" if output else text
    console.result(about, f"{advice_text(advice)}\n\n{end.rstrip()}")


def situation_of(
    console: Console,
    checkpoint: str,
    *,
    goal: str = "balanced",
    use: str = "chat",
    gpu: str | None = None,
    gpus: int = 1,
    tokens: int | None = None,
    requests: int = 32,
) -> Situation:
    """What the options say. Raises InputError for what there is not, with the nearest that there is."""
    from conch_build.advise.situation import GOALS, USES, Situation
    from conch_build.checkpoint import resolve
    from conch_build.gpu.cards import find_gpu
    from conch_build.plan import Model

    card = None if gpu is None else find_gpu(gpu)
    goal, use = _known("--goal", goal, GOALS), _known("--use", use, USES)
    found = resolve(Model(checkpoint=checkpoint), backend="pytorch", needs_weights=False, say=console.note)
    length = min(4096, found.info.max_position_embeddings) if tokens is None else tokens
    return Situation(found, goal, use, card, gpus, length, requests)  # type: ignore[arg-type]


def _known(option: str, value: str, known: tuple[str, ...]) -> str:
    import difflib

    from conch_build.errors import InputError

    if value in known:
        return value
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    fix = f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."
    raise InputError(f"there is no `{value}`", where=option, fix=fix)
