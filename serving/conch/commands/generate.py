"""`conch generate`: one answer straight from Triton, over gRPC."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from conch.remote import grpc_url
from conch_build.console import Console, with_console
from conch_build.errors import InputError


@click.command()
@click.argument("prompt", required=False)
@click.option("--ids", help="Token ids instead of a text, as 1,2,3.")
@click.option("--url", default="127.0.0.1:8001", show_default=True, help="Triton's gRPC port.")
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int)
@click.option("--top-p", type=float)
@click.option("--seed", type=int)
@click.option("--stop", multiple=True, help="A text that ends the answer; may be repeated.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds.")
@click.option("--stream", is_flag=True, help="Print the answer as it is made.")
@with_console
def generate(
    console: Console,
    prompt: str | None,
    ids: str | None,
    url: str,
    stop: tuple[str, ...],
    timeout: float | None,
    stream: bool,
    **sampling: Any,
) -> None:
    """Continue PROMPT (or token ids) with the model behind Triton."""
    if (prompt is None) == (ids is None):
        raise InputError("give either a prompt or --ids")
    if stream and console.as_json:
        raise InputError("--stream prints text as it comes; it does not go with --json")
    if ids is not None and stop:
        raise InputError("--stop holds texts; it needs a prompt of text")
    from conch.client import Client

    given: str | Sequence[int] = _parse(ids) if ids is not None else prompt or ""
    with Client(grpc_url(url), timeout=timeout) as client:
        started = time.perf_counter()
        if stream:
            for delta in client.stream(given, stop_words=stop, **sampling):
                click.echo(_shown(delta.text, delta.tokens) + (" " if ids else ""), nl=False)
            click.echo()
            return
        result = client.generate(given, stop_words=stop, **sampling)
        seconds = time.perf_counter() - started
    data = {
        "text": result.text,
        "tokens": list(result.tokens) if ids is not None else None,
        "finish_reason": result.finish_reason,
        "cached_tokens": result.cached_tokens,
        "seconds": round(seconds, 4),
    }
    console.result(data, _shown(result.text, result.tokens))


def _parse(ids: str) -> list[int]:
    try:
        return [int(part) for part in ids.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"{ids!r} holds something other than token ids", where="--ids") from None


def _shown(text: str | None, tokens: Sequence[int]) -> str:
    return text if text is not None else " ".join(map(str, tokens))
