"""Share of the memory's speed that decoding used, from the requests alone. Knows the engine by its bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from conch.bench.roofline import measured_bandwidth, share_of_roofline, step_bytes
from conch.bench.traffic.measures import Round
from conch_build.errors import InputError
from conch_build.manifest import EngineManifest

_PIECES = 200
"""Matrices that the read which measures the bandwidth is made of."""


@dataclass(frozen=True)
class EngineBytes:
    """What a decode step of an engine on this machine's CPU reads."""

    weights: int
    kv_per_token: float

    @classmethod
    def of(cls, engine: Path) -> EngineBytes:
        """Raises InputError for an engine of another backend."""
        from conch.bench.ours import engine_weight_bytes

        manifest = EngineManifest.load(engine)
        if not (engine / "model.xml").is_file():
            raise InputError("the roofline is known of engines for this CPU alone", where=str(engine))
        return cls(engine_weight_bytes(engine), manifest.kv_block_bytes / manifest.kv_cache.tokens_per_block)

    def bandwidth(self) -> float:
        """Bytes/s of this machine's memory, measured now."""
        return measured_bandwidth([self.weights // _PIECES] * _PIECES, os.cpu_count() or 1)


def roofline_share(rounds: list[Round], engine: EngineBytes, bandwidth: float) -> float | None:
    """None where tokens were speculated, as a step then gives several, or where nothing was decoded."""
    records = [[r for r in one.records if r.tpot is not None and not r.draft_tokens] for one in rounds]
    every = [record for some in records for record in some]
    if len(every) < sum(len(one.records) for one in rounds):
        return None
    spans = [[(r.arrivals[0], r.arrivals[-1]) for r in some] for some in records]
    decoding = sum(_union(some) for some in spans)
    if not decoding:
        return None
    sequences = sum(end - start for some in spans for start, end in some) / decoding
    context = fmean(record.prompt_tokens + record.tokens / 2 for record in every)
    read = step_bytes(engine.weights, engine.kv_per_token, 1, sequences * context)
    return share_of_roofline(read, median(record.tpot or 0.0 for record in every), bandwidth)


def _union(spans: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered
