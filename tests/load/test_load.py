"""Three hundred requests at once on an engine whose KV cache holds a few of them: every one ends rightly.

A third is withdrawn at a random moment, a third asks for more than the engine can ever hold, and what is left still
needs many times the blocks that there are. Afterwards the server is as it was before.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

from conch.client import AsyncClient
from conch_build.errors import RequestError
from tests.conftest import running_triton

if TYPE_CHECKING:
    from conch.triton import TritonServer

MAX_SEQ_LEN = 512
REQUESTS = 300
PLAN = f"""
name: crowded
model: {{checkpoint: sample}}
quantization: {{format: int8}}
engine:
  max_batch_size: 32
  max_seq_len: {MAX_SEQ_LEN}
  kv_cache: {{size: 12MiB}}
"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton over the sample model with room for two of its longest requests."""
    from conch_build.pipeline import build
    from conch_build.plan import parse_plan

    with running_triton(build(parse_plan(PLAN)), tmp_path_factory.mktemp("crowded")) as server:
        yield server


@pytest.mark.slow
async def test_every_request_of_a_crowd_ends_rightly_and_leaves_nothing(crowded: TritonServer) -> None:
    async with AsyncClient(crowded.grpc_url) as client:
        await client.generate([1, 2, 3], max_tokens=2)
        await asyncio.sleep(1)  # the metrics follow the engine by a quarter of a second
        before = _state(crowded)
        chance = random.Random(7)
        outcomes = await asyncio.gather(*(_one(client, number, chance.random()) for number in range(REQUESTS)))
    assert Counter(outcomes) == {"whole": 100, "withdrawn": 100, "refused": 100}
    assert _settles(crowded, before), (_state(crowded), before)
    assert _metric(crowded, "conch_engine_preemptions_total") > 0


async def _one(client: AsyncClient, number: int, chance: float) -> str:
    """Send request `number` and say how it ended. `chance` (0 to 1) decides its length and its moment."""
    await asyncio.sleep(chance)
    prompt = [100 + (number * 31 + n) % 40_000 for n in range(1 + int(chance * 250))]
    max_tokens = 1 + int(chance * 200)
    if number % 3 == 0:
        with pytest.raises(RequestError, match=str(MAX_SEQ_LEN)):
            await client.generate(prompt, max_tokens=MAX_SEQ_LEN - len(prompt) + 1 + number)
        return "refused"
    if number % 3 == 1:
        stream = client.stream(prompt, max_tokens=MAX_SEQ_LEN - len(prompt), end_ids=())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_drain(stream), chance * 2)
        stream.cancel()
        return "withdrawn"
    tokens = await _drain(client.stream(prompt, max_tokens=max_tokens, end_ids=(), temperature=0.0))
    assert tokens == max_tokens
    return "whole"


async def _drain(stream: object) -> int:
    count = 0
    async for delta in stream:  # type: ignore[attr-defined]
        count += len(delta.tokens)
    return count


def _state(server: TritonServer) -> dict[str, float]:
    """What must not grow: blocks and requests in the engine, threads of Triton and its python processes."""
    assert server.pid is not None
    root = psutil.Process(server.pid)
    threads = sum(process.num_threads() for process in [root, *root.children(recursive=True)])
    return {
        "threads": threads,
        "blocks": _metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used"),
        "active": _metric(server, "nv_trt_llm_request_metrics", request_type="active"),
        "waiting": _metric(server, "nv_trt_llm_request_metrics", request_type="waiting"),
    }


def _settles(server: TritonServer, before: dict[str, float], seconds: float = 20.0) -> bool:
    """Triton keeps a few idle threads of its pools; everything else must come back exactly."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = _state(server)
        if now["threads"] <= before["threads"] + 8 and all(now[key] == before[key] for key in now if key != "threads"):
            return True
        time.sleep(0.25)
    return False


def _metric(server: TritonServer, name: str, **labels: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        text = answer.read().decode()
    for found in re.finditer(rf"^{name}\{{(.*)\}} (\S+)$", text, re.M):
        if all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
            return float(found[2])
    return 0.0
