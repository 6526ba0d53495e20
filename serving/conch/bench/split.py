"""`python -m conch.bench.split`: what long prompts do to running streams, with and without engines of their own.

Both sides are two Tritons with one engine on the same CPUs, behind one gateway: two replicas, or one that reads prompts
and one that answers. They take turns. Streams run all the time, and long prompts come at even intervals.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from conch_build.console import Console, table, with_console
from conch_build.units import format_seconds

_PLAN = """
name: split
model: {{checkpoint: sample}}
quantization: {{format: int8}}
engine: {{max_seq_len: 4096, kv_cache: {{size: 512MiB}}}}
serving:
  triton: {{http_port: 0, grpc_port: 0, metrics_port: 0}}
  gateway: {{port: 0, database: {{url: "sqlite:///{folder}/gateway.db"}}}}
  {serving}
"""
_SIDES = {
    "replicas": "replicas: 2",
    "disaggregated": (
        "disaggregated: {context: {instances: 1}, generation: {instances: 1}, max_local_prefill_length: 256}"
    ),
}


@dataclass
class Seen:
    """Of a side, in seconds: gaps between tokens of the running streams, and waits of the long prompts."""

    gaps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, float]:
        return {
            "gap_p50_seconds": at(self.gaps, 0.5),
            "gap_p99_seconds": at(self.gaps, 0.99),
            "gap_max_seconds": max(self.gaps),
            "long_ttft_p50_seconds": at(self.waits, 0.5),
            "tokens": len(self.gaps),
        }


def at(values: list[float], share: float) -> float:
    """The value that such a share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@click.command()
@click.option("--streams", default=4, show_default=True, help="That run all the time.")
@click.option("--every", default=4.0, show_default=True, help="Seconds between long prompts.")
@click.option("--prompt-words", default=1200, show_default=True, help="Of each of them.")
@click.option("--seconds", default=20.0, show_default=True, help="Of each round of each side.")
@click.option("--rounds", default=2, show_default=True)
@with_console
def main(console: Console, streams: int, every: float, prompt_words: int, seconds: float, rounds: int) -> None:
    """Gaps between tokens of running streams while long prompts arrive: replicas against split engines."""
    seen = {side: Seen() for side in _SIDES}
    for number in range(rounds):
        for side, one in seen.items():
            console.note(f"round {number + 1} of {rounds}: {side}")
            with _served(side) as url:
                asyncio.run(_round(url, one, streams, every, prompt_words, seconds))
    ratio = at(seen["replicas"].gaps, 0.99) / at(seen["disaggregated"].gaps, 0.99)
    told = {side: one.as_dict() for side, one in seen.items()}
    times = ("gap_p50_seconds", "gap_p99_seconds", "gap_max_seconds", "long_ttft_p50_seconds")
    rows = [(side, *(format_seconds(one[key]) for key in times), f"{one['tokens']:,.0f}") for side, one in told.items()]
    heads = ("", "gap p50", "gap p99", "largest", "long prompts' first token", "tokens of streams")
    text = f"{table(heads, rows)}\np99 of replicas / p99 of disaggregated: {ratio:.2f}"
    console.result({"p99_ratio": round(ratio, 3), "sides": told}, text)


@contextmanager
def _served(side: str) -> Iterator[str]:
    """A running `conch serve`; its URL."""
    with tempfile.TemporaryDirectory(prefix="conch-split-") as folder:
        plan = Path(folder) / "conch.yaml"
        plan.write_text(_PLAN.format(folder=folder, serving=_SIDES[side]), encoding="utf-8")
        command = [sys.executable, "-m", "conch.cli", "serve", str(plan), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["gateway"]
            finally:
                process.terminate()
                process.wait(60)


async def _round(url: str, seen: Seen, streams: int, every: float, words: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:

        async def stream() -> None:
            while time.monotonic() < end:
                last: float | None = None
                async for now in _tokens(http, "1, 2, 3,", 300):
                    if last is not None:
                        seen.gaps.append(now - last)
                    last = now
                    if now > end:
                        return

        async def long(number: int) -> None:
            began = time.monotonic()
            text = " ".join(f"{number}-{index}" if index % 9 == 0 else "and so on" for index in range(words // 3))
            async for now in _tokens(http, text, 2):
                seen.waits.append(now - began)
                return

        running = [asyncio.ensure_future(stream()) for _ in range(streams)]
        await asyncio.sleep(2 * every)
        while time.monotonic() < end - 2 * every:
            running.append(asyncio.ensure_future(long(time.monotonic_ns())))
            await asyncio.sleep(every)
        await asyncio.gather(*running)


async def _tokens(http: httpx.AsyncClient, prompt: str, most: int) -> AsyncIterator[float]:
    """When each event with a token came."""
    body = {
        "model": "split",
        "prompt": prompt,
        "max_tokens": most,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    async with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield time.monotonic()


if __name__ == "__main__":
    main()
