"""`conch batch`: a table of documents to the same table with answers."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from conch.remote import gateway_url
from conch_build.console import Console, with_console
from conch_build.errors import InputError
from conch_build.units import format_seconds

if TYPE_CHECKING:
    from conch.batch.checkpoint import Totals
    from conch_build.cost import Price
    from conch_build.plan import Plan

SOME_FAILED = 7
"""Exit code when the output is there, and some of its rows have no answer."""


@click.command()
@click.argument("source", metavar="INPUT", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="JSONL, CSV or Parquet.")
@click.option("--prompt", default="{text}", show_default=True, help="What is asked: {column} fields, or Jinja.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="A file with the prompt.")
@click.option("--document", help="The column that may be split. Default: `text`, or the prompt's first one.")
@click.option("--system", help="Instructions that come before each prompt.")
@click.option("--schema", "schema_path", type=click.Path(path_type=Path), help="JSON Schema of each answer.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="Of an answer.")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0, 2))
@click.option("--too-long", default="split", show_default=True, type=click.Choice(["split", "fail"]))
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="A running gateway.")
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="Start what this plan describes instead.")
@click.option("--model", help="Default: the first one that the gateway serves.")
@click.option("--api-key", envvar="CONCH_API_KEY", help="Default: $CONCH_API_KEY.")
@click.option("--concurrency", default=64, show_default=True, type=click.IntRange(min=1), help="At most, at once.")
@click.option("--patience", default=120.0, show_default=True, help="Seconds without any answer until it stops.")
@click.option("--hourly-usd", type=click.FloatRange(min=0), help="Of the machine. Default: the plan's.")
@click.option("--retry-failed", is_flag=True, help="Ask rows again that have failed before.")
@with_console
def batch(
    console: Console,
    source: Path,
    output: Path,
    prompt: str,
    prompt_file: Path | None,
    plan_path: Path | None,
    url: str,
    **options: Any,
) -> None:
    """Ask a model about each row of INPUT (JSONL, CSV, Parquet) and write the rows with their answers.

    A document longer than the context is asked about in parts, whose answers are made one. A batch that was ended
    goes on when the same command is run again. Rows that cannot be answered are kept with the reason, and then the
    exit code is 7.
    """
    from conch_build.plan import load_plan

    signal.signal(signal.SIGTERM, _interrupt)  # what was started must be ended, as on Ctrl-C
    url = gateway_url(url)
    if prompt_file is not None:
        prompt = _text(prompt_file)
    plan = load_plan(plan_path) if plan_path else None
    with _gateway(plan, url, console) as answering:
        totals = _run(console, source, output, prompt, answering, _price(plan, options["hourly_usd"]), options)
    _report(console, output, totals, _price(plan, options["hourly_usd"]))
    if totals.failed:
        sys.exit(SOME_FAILED)


def _run(
    console: Console, source: Path, output: Path, prompt: str, url: str, price: Price | None, options: dict[str, Any]
) -> Totals:
    import asyncio

    from conch.batch.answers import Answerer, Task
    from conch.batch.asking import Gateway, client, served_model
    from conch.batch.checkpoint import Checkpoint
    from conch.batch.local import LocalWork
    from conch.batch.output import check_output
    from conch.batch.prompt import Prompt
    from conch.batch.rows import open_input
    from conch.batch.run import run
    from conch.batch.throttle import Throttle
    from conch_build.extras import require
    from conch_build.files import sha256_file

    require("conch batch", "batch", "httpx")
    table = open_input(source)
    columns = table.columns()
    schema = _schema(options["schema_path"])
    asked = Prompt(prompt, columns, options["document"])

    async def work() -> Totals:
        async with client(url, options["api_key"], options["concurrency"]) as http:
            model, context = await served_model(http, options["model"])
            if options["max_tokens"] >= context:
                raise InputError(f"the context has {context} tokens", where="--max-tokens", fix="Give fewer.")
            task = Task(
                asked,
                context,
                options["max_tokens"],
                options["temperature"],
                options["system"],
                schema,
                options["too_long"] == "split",
            )
            names = ("system", "max_tokens", "temperature", "too_long")
            same = {"input": sha256_file(source), "prompt": prompt, "document": asked.document, "model": model}
            same |= {"schema": schema, **{name: options[name] for name in names}}
            gateway = Gateway(http, Throttle(options["concurrency"]), model, options["patience"])
            local = LocalWork(Answerer(gateway, task), 2 * options["concurrency"])
            with Checkpoint(output, same, retry_failed=options["retry_failed"]) as checkpoint:
                if before := checkpoint.totals.rows:
                    console.note(f"{before} rows are answered already")
                return await run(table, output, checkpoint, local, price)

    check_output(output, table, columns, again=options["retry_failed"])
    return asyncio.run(work())


def _report(console: Console, output: Path, totals: Totals, price: Price | None) -> None:
    usd = price.usd(totals.seconds) if price else None
    speed = totals.completion_tokens / totals.seconds if totals.seconds else 0.0
    lines = [
        f"output    {output}",
        f"rows      {totals.rows}: {totals.answered} answered, {totals.failed} failed",
        f"tokens    {totals.prompt_tokens} in, {totals.completion_tokens} out, {speed:.0f} tok/s",
        f"time      {format_seconds(totals.seconds)}",
    ]
    if usd is not None:
        lines.append(f"cost      ${usd:.4f}")
    data = {"output": str(output), **asdict(totals), "tokens_per_second": round(speed, 1), "usd": usd}
    console.result(data, "\n".join(lines))


@contextlib.contextmanager
def _gateway(plan: Plan | None, url: str, console: Console) -> Iterator[str]:
    """The address of what answers: of a plan, a stack of its own."""
    if plan is None:
        yield url
        return
    from conch.evaluation import EngineEvaluator
    from conch.evaluation.served import served
    from conch_build.pipeline import build
    from conch_build.store import Store

    build(plan, evaluator=EngineEvaluator(), say=console.note)
    with served(plan, Store(), console.note) as subject:
        yield subject.url


def _price(plan: Plan | None, hourly_usd: float | None) -> Price | None:
    from conch_build.cost import Price

    if hourly_usd is None and plan is not None:
        hourly_usd = plan.cost.instance_hourly_usd
    return None if hourly_usd is None else Price(hourly_usd)


def _schema(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        schema = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where=str(path)) from None
    if not isinstance(schema, dict):
        raise InputError("is no JSON Schema: it must be an object", where=str(path))
    return schema


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
