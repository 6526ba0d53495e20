"""`conch ladder`: what each layer of optimization brings for a plan's model on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from conch_build.console import Console, with_console

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path), default="conch.yaml")
@click.option("--rungs", metavar="A,B", help="Only these.  [default: all]")
@click.option("--minutes", default=1.0, show_default=True, type=click.FloatRange(min=0), help="To repeat rounds for.")
@click.option("--requests", default=16, show_default=True, type=click.IntRange(min=1), help="Of a round.")
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(min=1), help="Requests at once.")
@click.option("--hourly-usd", type=click.FloatRange(min=0), help="Price of this machine.  [default: the plan's]")
@click.option("--html", type=FILE, help="The table and charts as one file.")
@with_console
def ladder(
    console: Console,
    plan: Path,
    rungs: str | None,
    minutes: float,
    requests: int,
    concurrency: int,
    hourly_usd: float | None,
    html: Path | None,
) -> None:
    """Measure PLAN's model from bare transformers up to all that Conch has, each layer on top of those below it.

    Every rung has a process of its own and answers the same requests, in rounds that take turns: prompts of mixed
    lengths that begin alike, greedy. Intervals are of 95 %. Engines are built as `conch build` does, and kept.
    """
    from contextlib import ExitStack
    from tempfile import TemporaryDirectory

    from conch.ladder.ascent import Ascent, Load
    from conch.ladder.made_up import made_up
    from conch.ladder.page import ladder_page, ladder_text
    from conch.ladder.rows import CONFIDENCE, rows_of
    from conch.ladder.rungs import check, chosen, rungs_of
    from conch.ladder.workload import KINDS, SHARED_TOKENS, texts_of
    from conch_build.cost import Price
    from conch_build.pipeline import checked
    from conch_build.plan import load_plan
    from conch_build.quality.gate import baseline_plan

    loaded = load_plan(plan)
    check(loaded)
    every = rungs_of(loaded)
    wanted = chosen(every, rungs)
    price_usd = loaded.cost.instance_hourly_usd if hourly_usd is None else hourly_usd
    checkpoint = checked(baseline_plan(loaded), None, console.note)  # what is wrong above it is told of its rungs
    with ExitStack() as stack:
        adapters = loaded.engine.lora.adapters
        if not adapters and any(rung.mixes_adapters for rung in wanted):
            adapters = made_up(checkpoint.info, Path(stack.enter_context(TemporaryDirectory())))
        load = Load(requests, min(concurrency, loaded.engine.max_batch_size), minutes)
        texts = texts_of(str(checkpoint.path / "tokenizer.json"))
        climbed = Ascent(loaded, checkpoint, adapters, load, console.note).climb(wanted, texts)
    rows = rows_of(climbed, every, None if price_usd is None else Price(price_usd))
    about = {
        "plan": str(plan),
        "model": loaded.model.checkpoint,
        "at_once": load.at_once,
        "shared_tokens": SHARED_TOKENS,
        "lengths": [{"prompt": SHARED_TOKENS + own, "answer": answer} for own, answer in KINDS],
        "confidence": CONFIDENCE,
        "hourly_usd": price_usd,
        "adapters": list(adapters),
        "made_up_adapters": bool(adapters) and not loaded.engine.lora.adapters,
    }
    if html is not None:
        told = {"model": about["model"], "requests at once": load.at_once, "price of an hour in USD": price_usd}
        html.write_text(ladder_page(f"The ladder of {loaded.name}", told, rows), encoding="utf-8")
    wrote = f"\nwrote {html}" if html else ""
    console.result({**about, "html": html and str(html), "rows": rows}, ladder_text(rows) + wrote)
