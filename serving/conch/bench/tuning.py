"""Which variant of a peer is the fastest on this machine: each one measured, the best kept in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial

from conch.bench.match import Say, play
from conch.bench.peers import PEERS
from conch.bench.workloads import Texts, Workload
from conch_build.checkpoint import Checkpoint
from conch_build.files import home

_FILE = "tuning.json"


def chosen(peer: str) -> str:
    """The variant to use: the one that tuning found here, else the first."""
    path = home() / "bench" / _FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    variant = known.get(peer, {}).get("variant")
    return variant if variant in PEERS[peer].variants else next(iter(PEERS[peer].variants))


def tune(
    peer: str,
    checkpoint: Checkpoint,
    workload: Workload,
    concurrencies: Sequence[int],
    rounds: int,
    texts: Texts,
    say: Say,
) -> dict[str, float]:
    """Measure every variant and keep the best. Variant -> its score; those that do not run are left out."""
    scores: dict[str, float] = {}
    for variant in PEERS[peer].variants:
        say(f"{peer}: trying {variant}")
        make = partial(PEERS[peer].side, variant, checkpoint, say)
        match = play(peer, {peer: make}, [workload], concurrencies, rounds, texts, say)
        if match.cells:
            scores[variant] = score([cell.best for cells in match.cells.values() for cell in cells])
            say(f"{peer}: {variant} {scores[variant]:.0f}")
    if scores:
        _keep(peer, max(scores, key=scores.__getitem__), scores)
    return scores


def score(rates: Sequence[float]) -> float:
    """Geometric mean of tokens/s, so that each concurrency counts the same."""
    return math.exp(sum(map(math.log, rates)) / len(rates))


def _keep(peer: str, variant: str, scores: dict[str, float]) -> None:
    path = home() / "bench" / _FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, peer: {"variant": variant, "scores": scores}}, indent=2) + "\n")
