"""`conch draft PLAN`: make a draft model for a plan's target, by pruning and distilling it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from conch_build.console import Console, table, with_console

if TYPE_CHECKING:
    from conch_build.draft import DraftReport


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write. Default: .conch/drafts/NAME.")
@click.option(
    "--minutes", default=8.0, show_default=True, type=click.FloatRange(min=0, min_open=True), help="To spend."
)
@click.option(
    "--layers", default=2, show_default=True, type=click.IntRange(min=1), help="Of the target's, the first ones."
)
@click.option("--vocab", default=8192, show_default=True, type=click.IntRange(min=2), help="Tokens it can guess.")
@click.option("--verbose", is_flag=True, help="Show what the libraries print instead of logging it.")
@with_console
def draft(
    console: Console, plan: Path, output: Path | None, minutes: float, layers: int, vocab: int, verbose: bool
) -> None:
    """Make a draft model for the target of PLAN (conch.yaml), and say how much faster it promises to be.

    Half of the time the target's engine answers built-in prompts, half of it a few of its layers learn these
    answers. Killed or stopped, a rerun goes on where it was. Prints the folder that `engine.speculation.checkpoint`
    takes.
    """
    from conch.drafting import make
    from conch_build.draft import Recipe
    from conch_build.plan import load_plan

    loaded = load_plan(plan)
    folder, report = make(loaded, Recipe(layers, vocab, minutes), output, verbose=verbose, say=console.note)
    console.note(_summary(report))
    console.result({"plan": str(plan), "draft": str(folder), **report.as_dict()}, str(folder))


def _summary(report: DraftReport) -> str:
    rows = [
        (
            prospect.max_draft_len,
            f"{position:.0%}",
            f"{prospect.tokens_per_step:.2f}",
            f"{prospect.speedup:.2f}x",
        )
        for prospect, position in zip(report.prospects, report.acceptance_by_position, strict=True)
    ]
    best = report.best
    return "\n".join(
        [
            f"{report.layers} layers, {report.vocabulary:,} tokens "
            f"({report.coverage:.1%} of what it writes), {report.parameters / 1e6:.0f}M parameters",
            f"held-out: {report.acceptance:.1%} of greedy tokens guessed, {report.acceptance_sampled:.1%} of sampled",
            f"steps: draft {report.draft_step_ms:.1f} ms, target {report.target_step_ms[0]:.1f} ms",
            table(("max_draft_len", "taken", "tokens/step", "speed"), rows),
            f"best here: max_draft_len {best.max_draft_len}"
            if best.speedup > 1
            else "no setting is predicted to be faster than no draft: more --minutes, or method: ngram",
        ]
    )
