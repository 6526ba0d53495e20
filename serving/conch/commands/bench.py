"""`conch bench`: a short benchmark of a running gateway."""

from __future__ import annotations

import asyncio

import click

from conch.remote import gateway_url
from conch_build.console import Console, table, with_console
from conch_build.errors import InputError


@click.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
@click.option("--model", help="Default: the only one that the gateway serves.")
@click.option("--concurrency", default="1,8", show_default=True, help="Requests at once, a row for each.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=2), help="Tokens an answer.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(min=1), help="The best one counts.")
@with_console
def bench(console: Console, url: str, model: str | None, concurrency: str, max_tokens: int, rounds: int) -> None:
    """Stream chat answers at each concurrency and print tokens/s, time to first token, inter-token latency."""
    from conch.bench.load import Workload, sweep

    url, levels = gateway_url(url), counts(concurrency)
    workload = Workload(model or _only_model(url), max_tokens)
    rows = asyncio.run(sweep(url, workload, levels, rounds=rounds, say=console.note))
    console.result(
        {"url": url, "model": workload.model, "max_tokens": max_tokens, "rows": [row.as_dict() for row in rows]},
        table(
            ("concurrency", "tok/s", "TTFT p50", "TTFT p95", "ITL p50", "ITL p95"),
            [
                (
                    row.concurrency,
                    f"{row.tokens_per_second:.0f}",
                    *(f"{ms:.1f} ms" for ms in (row.ttft_p50_ms, row.ttft_p95_ms, row.itl_p50_ms, row.itl_p95_ms)),
                )
                for row in rows
            ],
        ),
    )


def counts(text: str) -> list[int]:
    """`1,8,32` as numbers. Raises InputError for anything else."""
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise InputError(f"{text!r} is not a list of counts", where="--concurrency", fix="Write it as 1,8,32.")
    return levels


def _only_model(url: str) -> str:
    import json
    import urllib.error
    import urllib.request

    from conch_build.errors import UnavailableError

    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            names = [model["id"] for model in json.load(answer)["data"]]
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        raise UnavailableError(
            "no gateway answers there", where=url, fix="`conch serve` starts one; --url names another."
        ) from None
    if len(names) != 1:
        raise InputError(f"serves {len(names)} models: {', '.join(names)}", where=url, fix="Choose one with --model.")
    return str(names[0])
