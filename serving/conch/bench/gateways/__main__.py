"""`python -m conch.bench.gateways [SIDE ...]`: gateways before the same upstream, each in turn, several rounds."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from conch.bench.gateways import load
from conch.bench.gateways.sides import SIDES, Gateway
from conch.bench.gateways.upstream import MODEL
from conch.bench.sides import Process
from conch_build.console import Console, table, with_console
from conch_build.errors import ConchError, ServiceError
from conch_build.files import home

_AT_ONCE = 32
_STREAM_TOKENS = 64
_GAP_MS = 10
_GATEWAY_CORE, _OTHER_CORE = {0}, {1}


@dataclass
class Figures:
    """Of one side, a value a round."""

    p50_ms: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)
    worst_gap_ms: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)

    def best(self) -> dict[str, float]:
        return {
            "p50_ms": min(self.p50_ms),
            "requests_per_second": max(self.requests),
            "streams_per_second": max(self.streams),
            "worst_gap_ms": statistics.median(self.worst_gap_ms),
            "memory_mb": max(self.memory_mb),
        }


@click.command()
@click.argument("sides", nargs=-1, type=click.Choice(list(SIDES)))
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(min=0.5), help="Of each measurement.")
@with_console
def main(console: Console, sides: tuple[str, ...], rounds: int, seconds: float) -> None:
    """Added latency, requests/s, streams/s and memory of gateways, alone on core 0; all else is on core 1."""
    os.sched_setaffinity(0, _OTHER_CORE)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, _upstream(0) as upstream, _upstream(_GAP_MS) as paced:
        for number in range(rounds):
            direct = found.setdefault("no gateway", Figures())
            _measure(direct, upstream, paced, MODEL, seconds)
            direct.memory_mb.append(0.0)
            for name in sides or SIDES:
                console.note(f"round {number + 1}: {name}")
                figures = found.setdefault(name, Figures())
                with (
                    _gateway(SIDES[name], upstream, Path(folder)) as (gateway, url, process),
                    _gateway(SIDES[name], paced, Path(folder)) as (_, slow, _),
                ):
                    _measure(figures, url, slow, gateway.model, seconds)
                    figures.memory_mb.append(process.resident_bytes() / 1e6)
    best = {name: figures.best() for name, figures in found.items()}
    console.result({"seconds": seconds, "rounds": rounds, "sides": best}, _text(best))


def _measure(figures: Figures, url: str, paced: str, model: str, seconds: float) -> None:
    asyncio.run(load.run(url, model, at_once=2, seconds=1))  # connections and caches are warm from here on
    one = asyncio.run(load.run(url, model, at_once=1, seconds=seconds))
    many = asyncio.run(load.run(url, model, at_once=_AT_ONCE, seconds=seconds))
    streams = asyncio.run(load.run(url, model, at_once=_AT_ONCE, seconds=seconds, tokens=_STREAM_TOKENS))
    slow = asyncio.run(load.run(paced, model, at_once=1, seconds=seconds, tokens=_STREAM_TOKENS))
    figures.p50_ms.append(statistics.median(one.requests) * 1000)
    figures.requests.append(many.per_second)
    figures.streams.append(streams.per_second)
    figures.worst_gap_ms.append(max(slow.gaps) * 1000)


def _text(best: dict[str, dict[str, float]]) -> str:
    bare = best["no gateway"]["p50_ms"]
    ours = best.get("conch")
    rows = []
    for name, side in best.items():
        times = f"{ours['requests_per_second'] / side['requests_per_second']:.1f}x" if ours else ""
        rows.append(
            (
                name,
                f"{side['p50_ms'] - bare:.2f} ms",
                f"{side['requests_per_second']:.0f}",
                times,
                f"{side['streams_per_second']:.0f}",
                f"{side['worst_gap_ms']:.0f} ms",
                f"{side['memory_mb']:.0f} MB",
            )
        )
    heads = ("gateway", "added p50", f"requests/s at {_AT_ONCE}", "ours is", f"streams/s at {_AT_ONCE}")
    return table((*heads, f"worst gap of {_GAP_MS} ms", "memory"), rows)


@contextmanager
def _upstream(gap_ms: int) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "conch.bench.gateways.upstream", str(port)]
    process = Process(_pinned(command, _OTHER_CORE), home() / "bench" / "upstream.log", {"GAP_MS": str(gap_ms)})
    process.start()
    try:
        _wait(f"http://127.0.0.1:{port}", 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


@contextmanager
def _gateway(side: Any, upstream: str, folder: Path) -> Iterator[tuple[Gateway, str, Process]]:
    port = _free_port()
    own = folder / str(port)
    own.mkdir()
    gateway: Gateway = side(upstream, port, own)
    process = Process(_pinned(gateway.command, _GATEWAY_CORE), home() / "bench" / "gateway.log", gateway.env)
    process.start()
    try:
        _wait(f"http://127.0.0.1:{port}", gateway.start_seconds)
        yield gateway, f"http://127.0.0.1:{port}", process
    finally:
        process.stop()


def _wait(url: str, seconds: float) -> None:
    """Raises ServiceError when it never answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except (OSError, ConchError):
            if time.monotonic() > deadline:
                raise ServiceError("it does not answer", where=url) from None
            time.sleep(0.2)


def _pinned(command: list[str], cores: set[int]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
