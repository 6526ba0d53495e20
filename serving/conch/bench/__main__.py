"""`python -m conch.bench`: our stack against its peers, all in one go. `scripts/bench` installs them and calls this."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import time
from functools import partial
from pathlib import Path

import click

from conch.bench.contests import contests
from conch.bench.match import Make, Match, play
from conch.bench.ours import CONCURRENT, FORMATS, matrix_bytes, ours
from conch.bench.peers import PEERS
from conch.bench.report import contest_text, sides_text, verdicts
from conch.bench.roofline import measured_bandwidth
from conch.bench.traffic.setup import counts
from conch.bench.tuning import chosen, tune
from conch.bench.workloads import SHORT, WORKLOADS, Texts, tiny
from conch_build.checkpoint import Checkpoint
from conch_build.console import Console, table, with_console
from conch_build.errors import InputError
from conch_build.files import home

_TUNED_AT = (1, 8, 32)


@click.command()
@click.argument("peers", nargs=-1, type=click.Choice(list(PEERS)))
@click.option("--quick", is_flag=True, help="A few tokens each, to see that every side runs; nothing is judged.")
@click.option("--tune", "tunes", is_flag=True, help="Find the fastest variant of each peer first, and keep it.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Of each row.")
@click.option("--concurrency", default="1,8,32,64", show_default=True, help="Requests at once, a row for each.")
@click.option(
    "--workload", "names", multiple=True, type=click.Choice([w.name for w in WORKLOADS]), help="Default: all."
)
@click.option("--best", default="int8", show_default=True, type=click.Choice(list(FORMATS)), help="Ours against vLLM.")
@click.option("--plan", "plans", multiple=True, metavar="FORMAT=FILE", help="Our plan for a format.")
@with_console
def main(
    console: Console,
    peers: tuple[str, ...],
    quick: bool,
    tunes: bool,
    rounds: int,
    concurrency: str,
    names: tuple[str, ...],
    best: str,
    plans: tuple[str, ...],
) -> None:
    """Measure our stack and PEERS (default: all) in turns, and print ratios against what shall be reached."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave by the way that ends all sides
    from conch_build.checkpoint import resolve
    from conch_build.plan import Model

    peers = peers or tuple(PEERS)
    own_plans = dict(_own_plan(text) for text in plans)
    workloads = [workload for workload in WORKLOADS if not names or workload.name in names]
    at_once = counts(concurrency)
    if max(at_once) > CONCURRENT:
        raise InputError(f"the sides are set up for {CONCURRENT} requests at once", where="--concurrency")
    if quick:
        workloads, at_once, rounds = [tiny(workload) for workload in workloads], [1, 2], 1
    checkpoint = resolve(Model(checkpoint="sample"), say=console.note)
    texts = _texts(checkpoint)
    sizes, cores = matrix_bytes(checkpoint.path), os.cpu_count() or 1
    bandwidth = measured_bandwidth(sizes, cores)
    if tunes:
        for peer in peers:
            scores = tune(peer, checkpoint, tiny(SHORT) if quick else SHORT, _TUNED_AT, 2, texts, console.note)
            console.note(table((peer, "tok/s"), [(name, f"{score:.0f}") for name, score in scores.items()]))

    fought = [contest for contest in contests(best) if contest.peer in peers]
    found: dict[str, Match] = {}
    saved = home() / "bench" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    saved.parent.mkdir(parents=True, exist_ok=True)
    for peer in peers:
        makers: dict[str, Make] = {peer: partial(PEERS[peer].side, chosen(peer), checkpoint, console.note)}
        for name in dict.fromkeys(contest.ours for contest in fought if contest.peer == peer):
            makers[name] = partial(ours, name, own_plans.get(name), console.note)
        found[peer] = play(peer, makers, workloads, at_once, rounds, texts, console.note)
        bandwidth = max(bandwidth, measured_bandwidth(sizes, cores))
        met = [contest for contest in fought if contest.peer in found]
        data = {
            "machine": {"processor": _processor(), "cores": cores, "bandwidth": bandwidth},
            "rounds": rounds,
            "workloads": {workload.name: workload.title for workload in workloads},
            "verdicts": [row for contest in met for row in verdicts(contest, found[contest.peer], workloads)],
            "matches": [match.as_dict() for match in found.values()],
        }
        saved.write_text(json.dumps(data, indent=2) + "\n")
    console.note(f"saved to {saved}")
    text = [f"memory: {bandwidth / 1e9:.1f} GB/s by a read shaped like the model's weights"]
    for peer, match in found.items():
        text.append(sides_text(match))
        mine = [contest for contest in fought if contest.peer == peer]
        text += [contest_text(contest, match, workloads, bandwidth, judged=not quick) for contest in mine]
    console.result(data, "\n\n".join(part for part in text if part))


def _processor() -> str:
    """As Linux names it."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return names[0] if names else platform.machine()


def _texts(checkpoint: Checkpoint) -> Texts:
    from tokenizers import Tokenizer

    from conch_build.calibration import builtin_texts

    tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    return Texts(builtin_texts(), encode)


def _own_plan(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if name not in FORMATS or not file:
        raise InputError(f"{text!r} is not FORMAT=FILE", where="--plan", fix=f"Formats: {', '.join(FORMATS)}.")
    return name, Path(file)


if __name__ == "__main__":
    main()
