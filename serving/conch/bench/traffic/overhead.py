"""What the load generator itself adds: the same load on a server whose timing is known, in a process of its own."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from conch.bench.traffic.lengths import Lengths
from conch.bench.traffic.measures import Terms
from conch.bench.traffic.openai import CHAT, OpenAITarget
from conch.bench.traffic.prompts import Mix, Stories
from conch.bench.traffic.trial import Load, Trial, row_of

Shape = tuple[float, float]
"""Seconds to the first token, and between tokens."""


async def measure_overhead(load: Load, shape: Shape, output: Lengths) -> dict[str, Any]:
    """How much later than it came a token was seen, in the median and at the 99th percentile, and the CPU it took.

    The toy shares the machine and is late itself, so this is the most that the generator can have added.
    """
    first, between = shape
    command = [sys.executable, "-m", "conch.bench.traffic.toy", str(first), str(between)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        mix = Mix({"toy": 1.0}, Lengths("fixed", 1), Lengths("fixed", output.draw(random.Random(0))))
        trial = Trial(OpenAITarget(url, CHAT), mix, Stories())
        await trial.warm_up()
        measured = await trial.measure(load)
        await trial.target.close()
    finally:
        process.terminate()
        await process.wait()
    row = row_of(load, [measured], Terms())
    return {
        "load": load.label,
        "tokens_per_second": row["tokens_per_second"],
        "ttft_added_p50_ms": row["ttft_p50_ms"] - 1e3 * first,
        "ttft_added_p99_ms": row["ttft_p99_ms"] - 1e3 * first,
        "tpot_added_p50_ms": row["tpot_p50_ms"] - 1e3 * between,
        "generator_cpu_share": row["generator_cpu_share"],
        "cpu_us_per_token": 1e6 * measured.own_seconds / sum(record.tokens for record in measured.records),
    }
